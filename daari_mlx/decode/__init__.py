"""From a prompt to the teacher's own tokens: the loop draft → verify → accept → re-anchor.

In come a loaded teacher, a prompt, and a graph or another drafter; out come tokens and text, equal to mlx-lm's.
``generate`` has mlx-lm's functions, ``engine.SpecEngine`` keeps a conversation, ``loop`` is the loop itself. Grammars,
stops and limits of an answer live here.
"""
