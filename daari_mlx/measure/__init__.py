"""What is true of a drafter: streams → records and verdicts.

``bench`` decodes prompts live, in turns with plain mlx-lm; ``replay`` and ``comparison`` run drafters over recorded
``streams`` without a teacher; ``forecast`` and ``prospect`` say what a graph will give. Every figure is defined once,
in ``records`` or beside the rule that it measures. The baselines that a graph is held against live here too.
"""
