"""The options of the commands, each described once, under mlx-lm's name where mlx-lm has it.

``command`` makes a command line of records; ``names`` are the records of what is told by name (a teacher, rows, a
drafter, a schema), ``words`` single options that several commands share, ``values`` read texts that are no number.
The options of an answer, of an extraction and of a tier are records of their own wings.
"""
