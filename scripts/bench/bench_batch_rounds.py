"""Thousands of rounds of random batches: every answer has to have the tokens that plain mlx-lm gives it alone.

Usage: ``python scripts/bench/bench_batch_rounds.py [ROUNDS] [--out FILE]``; prints the record, and appends it to the
file. Requests of every sort (greedy, sampled, with processors, on prompt caches, drafted well or badly) come, leave,
fail and are cancelled; tiny models, one for each kind of cache. Interrupted, it tells what it tried so far. Exit status
1 where a token differs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import suppress
from pathlib import Path

from recording import origin, tell

TESTS = Path(__file__).resolve().parents[2] / "tests"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rounds", type=int, nargs="?", default=10_000)
    parser.add_argument("--out", metavar="FILE", help="append the record to this file")
    args = parser.parse_args(argv)
    sys.path[:0] = [str(TESTS), str(TESTS / "batch")]
    import daari_mlx  # noqa: F401, I001  on Linux it loads a fast BLAS, which must happen before MLX is imported
    from random_batches import Lived, live
    from zoo import CONFIGS, build

    from daari_mlx.ground.progress import bar

    models = [(name, build(name)) for name in sorted(CONFIGS)]
    total, wrong, seed = Lived(), list[str](), 0
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    with bar(total=args.rounds, desc="random batches", unit="round") as progress, suppress(KeyboardInterrupt):
        while total.rounds < args.rounds:
            name, model = models[seed % len(models)]
            try:
                lived = live(model, seed, 60)
            except AssertionError as error:
                wrong.append(f"{name}, seed {seed}: {error}")
                lived = Lived(rounds=1)
            total.add(lived)
            progress.update(lived.rounds)
            seed += 1
    record = {**origin(), "what": "random batches", "batches": seed, **vars(total), "wrong": wrong, "ok": not wrong}
    tell(record, args.out)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
