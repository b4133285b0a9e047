"""The order of work: prompts that share a beginning follow one another, and among those the long ones come first."""

from __future__ import annotations

from daari_mlx.text.prefixes import shared_prefixes


def work_order(prompts: list[list[int]]) -> list[int]:
    """In which order to answer some prompts, as their places in the list.

    A beginning that several share is read once while it is kept, prompts of like lengths are read side by side with
    little padding, and rows that end late are begun early.
    """
    shared = shared_prefixes([prompt[:-1] for prompt in prompts], 1)
    return sorted(range(len(prompts)), key=lambda k: (prompts[k][: shared[k]], -len(prompts[k]), k))
