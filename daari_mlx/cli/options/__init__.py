"""The words of the command line: every option once, under mlx-lm's name where mlx-lm has it."""
