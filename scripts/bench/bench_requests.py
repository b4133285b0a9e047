"""Memory over many requests: what a process that only answers holds after ten of them and after all.

Usage: ``python scripts/bench/bench_requests.py [N] [--out results/requests.jsonl]``. The requests are mixed: drafted
with a graph and without, sampled, with penalties, with a cache that is given in, closed early, and ended
by an error in a processor, a sampler, a drafter or a progress callback.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from recording import origin, tell

import daari_mlx
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.progress import bar

ROOT = Path(__file__).resolve().parents[2]
TEACHER = ROOT / "tests" / "tiny_teacher"
SETTLED = 10  # requests after which all that is kept once is there
MOST_GROWTH = 0.02
TOKENS = 12
PROMPT = list(range(5, 25))


class Expected(Exception):
    """What a request of the mix is ended by."""


class Turns:
    """Drafts wrong tokens, nothing, and nothing for some rounds, in turn: every kind of round is run."""

    def __init__(self, fail: bool = False) -> None:
        self.calls, self.fail = 0, fail

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """As :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        self.calls += 1
        if self.fail and self.calls == 3:
            raise Expected
        tokens = [(context.tokens[-1] + self.calls) % 600] * min(3, limit) if self.calls % 3 == 0 else []
        return Draft(tokens, [0.5] * len(tokens), rest=2 * (self.calls % 2))


def _failing(at: int) -> Callable[..., Any]:
    calls = 0

    def fail(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise Expected
        return args[-1]

    return fail


def mix(model: Any) -> list[Callable[[], dict[str, Any]]]:
    """One maker of options for each kind of request."""
    penalty = {"repetition_penalty": 1.2}
    return [
        dict,
        lambda: {"drafter": Turns()},
        lambda: {"drafter": Turns(), "sampler": make_sampler(temp=0.8, top_p=0.9)},
        lambda: {"drafter": Turns(), "logits_processors": make_logits_processors(**penalty)},
        lambda: {"drafter": Turns(), "prompt_cache": make_prompt_cache(model)},
        lambda: {"drafter": Turns(), "closed": 5},
        lambda: {"closed": 3},
        lambda: {"drafter": Turns(fail=True)},
        lambda: {"drafter": Turns(), "logits_processors": [_failing(7)]},
        lambda: {"drafter": Turns(), "sampler": _failing(1)},
        lambda: {"drafter": Turns(), "prompt_progress_callback": _failing(2)},
    ]


def request(model: Any, tokenizer: Any, prompt: list[int], options: dict[str, Any]) -> None:
    """One answer, ended as its options say."""
    closed = options.pop("closed", None)
    stream = daari_mlx.stream_generate(model, tokenizer, prompt, TOKENS, **options)
    try:
        for number, _ in enumerate(stream, start=1):
            if number == closed:
                break
    except Expected:
        pass
    finally:
        stream.close()


def memory() -> dict[str, int]:
    """Bytes held now: by MLX's arrays, by Python's objects, and by the process as the system sees it."""
    gc.collect()
    mx.synchronize()
    mx.clear_cache()
    held = {"mlx_bytes": mx.get_active_memory(), "python_bytes": tracemalloc.get_traced_memory()[0]}
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
        held["resident_bytes"] = int(line.split()[1]) * 1024
    return held


def run(requests: int, after: Callable[[], Any] = lambda: None) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield (requests so far, what is held) after ``SETTLED`` of them and after all; each kind was warmed up before.

    Args:
        requests: how many, more than ``SETTLED``.
        after: called after each request.
    """
    model, tokenizer = load_teacher()
    kinds = mix(model)
    for kind in kinds:  # kernels, compiled samplers and taps are made once
        request(model, tokenizer, PROMPT, kind())
    tracemalloc.start()
    try:
        for number in bar(range(1, requests + 1), desc="requests", unit="request"):
            request(model, tokenizer, [*PROMPT, 30 + number % 500], kinds[number % len(kinds)]())
            after()
            if number in (SETTLED, requests):
                yield number, memory()
    finally:
        tracemalloc.stop()


def load_teacher() -> tuple[Any, Any]:
    """(model, tokenizer) of the tiny teacher."""
    from mlx_lm import load

    model, tokenizer = load(str(TEACHER))[:2]
    return model, tokenizer


def growth(before: dict[str, int], after: dict[str, int]) -> dict[str, float]:
    """How much more is held, as a share of MLX's and Python's bytes together and of the resident ones."""
    own = [held["mlx_bytes"] + held["python_bytes"] for held in (before, after)]
    found = {"growth": own[1] / own[0] - 1}
    if "resident_bytes" in before:
        found["resident_growth"] = after["resident_bytes"] / before["resident_bytes"] - 1
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 where memory grew by more than ``MOST_GROWTH``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("requests", nargs="?", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--out", type=Path, help="append the record to this file, too")
    args = parser.parse_args(argv)
    if args.requests <= SETTLED:
        parser.error(f"requests is {args.requests}: give more than {SETTLED}")

    (_, before), (_, after) = run(args.requests)
    found = growth(before, after)
    record = {
        "measurement": "memory over requests",
        "requests": args.requests,
        f"after_{SETTLED}": before,
        "after_all": after,
        **found,
        "most_growth": MOST_GROWTH,
        "met": all(share <= MOST_GROWTH for share in found.values()),
        **origin(),
    }
    tell(record, args.out)
    return int(not record["met"])


if __name__ == "__main__":
    sys.exit(main())
