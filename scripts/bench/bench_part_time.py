"""What each part of the drafter costs: a round and a drafted token, with the part and without it.

    python scripts/bench/bench_part_time.py STREAMS [--sets sms_spam,snips] [--repeats 7] [--out FILE]

One graph a set, calibrated for all sources or without one, in turns in one process. Times are taken ahead of every
token of the test answers, as in ``bench_drafter_time.py``: of each place the least of all repeats, and of a part the
median difference over the places at which both draft so far. Appends one line of JSON for each set.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_drafter_time import HERE, LONG, Timed, commit, least, made, spread

import daari_mlx.compile.calibrate as calibrate
from daari_mlx.cost.length import Trust
from daari_mlx.graph.source import NAMES
from daari_mlx.measure.bench import environment

Repeat = dict[str, list[float]]


class Distrustful(Timed):
    """Promises are taken at their word, and nothing is learnt of them."""

    def __call__(self) -> Repeat:
        """See :class:`Timed`."""
        kept = Trust.believed, Trust.learn
        Trust.believed, Trust.learn = (lambda _, promised: list(promised)), (lambda *_: None)  # type: ignore[method-assign]
        try:
            return super().__call__()
        finally:
            Trust.believed, Trust.learn = kept  # type: ignore[method-assign]


def variants(graphs: Any, test: Any) -> dict[str, Callable[[], Repeat]]:
    """The drafter with everything, and without each part."""
    found: dict[str, Callable[[], Repeat]] = {"all": Timed(graphs.graph, test)}
    for name in NAMES:
        found[name] = Timed(graphs.hearing([other for other in NAMES if other != name]), test)
    kept = calibrate._depart
    calibrate._depart = lambda features, *_: np.zeros(features.shape[1])
    try:
        graph, cases, sources = graphs._counted
        found["scenes"] = Timed(replace(graph, arbiter=calibrate.fit(cases, sources)), test)
    finally:
        calibrate._depart = kept
    found["trust"] = Distrustful(graphs.graph, test)
    return found


def further(repeat: Repeat) -> list[float | None]:
    """What a further token of the long draft took at each place; None where there are too few."""
    places = zip(repeat["round"], repeat["long"], repeat["further"], strict=True)
    return [(long - one) / more if more >= LONG else None for one, long, more in places]


def cost_of(whole: Repeat, without: Repeat) -> dict[str, dict[str, float]]:
    """µs of the part: a round (a draft of one token), a further token, and a draft as long as pays."""
    pairs = {what: list(zip(whole[what], without[what], strict=True)) for what in ("round", "draft")}
    tokens = zip(further(whole), further(without), strict=True)
    pairs["token"] = [(a, b) for a, b in tokens if a is not None and b is not None]
    return {what: spread([a - b for a, b in both]) for what, both in pairs.items()}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("--sets", default="sms_spam,wnut17,wikisql,snips,sgd_toolcall")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/part_time.jsonl"))
    args = parser.parse_args()
    where = environment()
    about = {key: where[key] for key in ("device", "python", "platform", "versions")}
    about |= {"commit": commit(HERE), "command": shlex.join(["python", *sys.argv])}
    for name in args.sets.split(","):
        measured = variants(*made(args.streams, name))
        repeats: dict[str, list[Repeat]] = {part: [] for part in measured}
        for repeat in range(args.repeats):
            for part in measured if repeat % 2 == 0 else reversed(measured):
                repeats[part].append(measured[part]())
        times = {part: least(found) for part, found in repeats.items()}
        whole = times.pop("all")
        line: dict[str, Any] = {"measurement": "part time", "unit": "µs", "set": name, "repeats": args.repeats}
        line["all"] = {what: spread(whole[what]) for what in ("round", "token", "draft")}
        line["parts"] = {part: cost_of(whole, without) for part, without in times.items()}
        for part, cost in line["parts"].items():
            print(name, part, {what: round(found["median"], 2) for what, found in cost.items()}, file=sys.stderr)
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line | about, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
