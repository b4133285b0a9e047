"""Which architectures of mlx-lm give plain's very tokens when their tokens are drafted, and which do not, and why.

Usage: ``python scripts/bench/bench_architectures.py [--out results/architectures.jsonl]``; prints a line for each
exception and the record. A tiny random model of each is decoded over 120 tokens, past every sliding window, with
drafts of 1 to 8 tokens that are right with a chance of 0.7; the tokens, and what the cache goes on to say, are
compared with mlx-lm's. Exit status 1 where a model differs that is not refused.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recording import append, origin

TESTS = Path(__file__).resolve().parents[2] / "tests"
SEEDS = (0, 1)


def verdict(name: str) -> tuple[str, str]:
    """(``"identical"``, ``"rounds"``, ``"refused"``, ``"broken"`` or ``"differs"``, why) of one architecture.

    One that rounds inside had the same tokens here, and is counted apart: another text may lie at one of its steps.
    """
    from architectures import BROKEN, REFUSED, ROUNDED
    from test_architectures import AFTER, LENGTH, PROMPT, case_of
    from zoo import plain_tokens

    if name in BROKEN:
        return "broken", BROKEN[name]
    if name in REFUSED:
        return "refused", REFUSED[name]
    case = case_of(name)
    for seed in SEEDS:
        tokens, statistics, cache, _ = case.run(seed)
        if tokens != case.plain[:LENGTH]:
            place = next(k for k, (a, b) in enumerate(zip(tokens, case.plain, strict=False)) if a != b)
            return "differs", f"token {place} of {LENGTH}, prompt {PROMPT}"
        if plain_tokens(case.model, tokens[-1:], AFTER, prompt_cache=cache) != case.plain[LENGTH:]:
            return "differs", "the cache goes on otherwise"
        if statistics.accepted == 0 or statistics.forwards >= LENGTH:
            return "differs", "nothing was drafted"
    if name in ROUNDED:
        return "rounds", f"the same tokens here, but {ROUNDED[name]}"
    return "identical", ""


def measure(names: Iterable[str]) -> dict[str, Any]:
    """The record over these architectures."""
    from daari_mlx.ground.progress import bar

    found = {name: verdict(name) for name in bar(list(names), desc="architectures", unit="model")}
    kinds = ("identical", "rounds", "refused", "broken", "differs")
    by = {kind: [n for n, (k, _) in found.items() if k == kind] for kind in kinds}
    return {
        "what": "architectures",
        **origin(),
        "architectures": len(found),
        "run_in_plain": len(found) - len(by["broken"]),
        "identical": len(by["identical"]),
        "identical_but_rounding_inside": len(by["rounds"]),
        "exceptions": {n: f"{kind}: {why}" for n, (kind, why) in found.items() if kind != "identical"},
        "names": by["identical"],
        "ok": not by["differs"],
    }


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", metavar="FILE", help="append the record to this file")
    parser.add_argument("names", nargs="*", help="only these (default: all)")
    args = parser.parse_args(argv)
    sys.path[:0] = [str(TESTS), str(TESTS / "teacher")]
    import daari_mlx  # noqa: F401, I001  on Linux it loads a fast BLAS, which must happen before MLX is imported
    from architectures import names

    record = measure(args.names or names())
    for name, why in record["exceptions"].items():
        print(f"{name}: {why}")
    print(
        f"{record['identical']} of {record['run_in_plain']} architectures that plain mlx-lm runs have its very tokens; "
        f"{record['identical_but_rounding_inside']} more had them here and round inside the model"
    )
    if args.out is not None:
        append(record, args.out)
    return int(not record["ok"])


if __name__ == "__main__":
    sys.exit(main())
