"""How long an answer could wait for learning: each step's time, and how long a fold keeps other threads from running.

    python scripts/bench/bench_learn_pauses.py [--answers 300] [--tokens 56] [--width 576] [--out FILE]

The answers are made up: of some forms, with states of the demo teacher's width. Steps that the answering thread takes
itself (``hear``; ``begin``: to take the newest graph and draft from it) are timed one by one. While tables are counted
in a thread beside it, another one does what answering does, to run some Python every millisecond, and notes the longest
time that it could not. All times are processor time of the process, so that a busy machine makes them no longer.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from recording import origin, tell

from daari_mlx.draft.drafter import Context
from daari_mlx.graph.graph import Graph
from daari_mlx.learn.drafter import LearningDrafter
from daari_mlx.learn.learner import Learner

VOCABULARY, FORMS, PERIOD = 49152, 12, 0.001


class Said:
    """Made-up answers: the keys of a form with values between them, and states that tell the token."""

    def __init__(self, tokens: int, width: int) -> None:
        self._random, self._tokens = np.random.default_rng(0), tokens
        self._forms = self._random.integers(0, VOCABULARY, (FORMS, tokens))
        self._directions = self._random.normal(size=(4096, width)).astype(np.float32)

    def answer(self) -> tuple[list[int], list[int], list[Any]]:
        """A prompt, an answer, and its states as rounds of a few tokens show them."""
        random = self._random
        prompt = random.integers(0, VOCABULARY, 40).tolist()
        answer = self._forms[random.integers(FORMS)].copy()
        answer[3::4] = random.integers(0, VOCABULARY, len(answer[3::4]))
        chosen = np.array([prompt[-1], *answer]) % 4096
        states = self._directions[chosen] + random.normal(scale=0.3, size=(len(chosen), self._directions.shape[1]))
        return prompt, answer.tolist(), np.array_split(states.astype(np.float32), max(1, len(chosen) // 6))


class Beat(threading.Thread):
    """Runs some Python every millisecond; ``longest`` is the longest processor time that it had to wait."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.longest, self._over = 0.0, threading.Event()

    def run(self) -> None:
        last = time.process_time()
        while not self._over.wait(PERIOD):
            now = time.process_time()
            self.longest, last = max(self.longest, now - last), now

    def end(self) -> float:
        """Stop, and tell in milliseconds."""
        self._over.set()
        self.join()
        return 1000 * self.longest


def took(work: Callable[[], object]) -> float:
    """Milliseconds of processor time."""
    start = time.process_time()
    work()
    return 1000 * (time.process_time() - start)


def begin(learner: Learner, graph: Graph, said: Said) -> float:
    """Milliseconds for a text's first draft from the newest graph."""
    drafter = LearningDrafter(learner, num_draft_tokens=8)
    drafter._snapshot = None  # type: ignore[assignment] # as if the newest had come since
    prompt, answer, states = said.answer()
    return took(lambda: drafter.draft(Context([*prompt, *answer[:3]], states[0][3]), 8))


def main() -> None:
    """Hear answers, fold in between, and tell the longest of each step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=56)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--out")
    args = parser.parse_args()
    said = Said(args.tokens, args.width)
    learner = Learner.of_nothing({}, args.width, VOCABULARY, clock=lambda: 0.0)
    learner._spent = 1e9  # only this script folds
    times: dict[str, list[float]] = {"hear": [], "begin": []}
    for _ in range(args.answers):
        one = said.answer()
        learner.wait()  # what is counted beside does not count here
        times["hear"].append(took(lambda one=one: learner.hear(*one)))  # type: ignore[misc]
    learner.wait()
    beat = Beat()
    beat.start()
    seconds = took(learner.fold) / 1000
    held = beat.end()
    for _ in range(5):
        times["begin"].append(begin(learner, learner.snapshot.graph, said))
    graph = learner.snapshot.graph
    record = {
        "answers": args.answers,
        "tokens": args.tokens,
        "width": args.width,
        "nodes": graph.size,
        "exemplars": len(graph.exemplars),
        "longest_ms": {name: round(max(found), 2) for name, found in times.items()},
        "median_ms": {name: round(float(np.median(found)), 2) for name, found in times.items()},
        "fold_seconds": round(seconds, 3),
        "held_up_ms": round(held, 2),
        **origin(),
    }
    tell(record, args.out)


if __name__ == "__main__":
    main()
