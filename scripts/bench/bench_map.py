"""A whole job over a file: `daari-mlx map` against mlx-lm's own ways to answer the same rows.

    python scripts/bench/bench_map.py --model FOLDER --graph FOLDER --data FILE [-n 400] [--out results/map.jsonl]

Arms: (a) a loop of ``mlx_lm.generate``; (b) ``mlx_lm.batch_generate`` at its best batch size; (c) the same with one
prompt cache of what all prompts share, which is read once and copied for every row. A job's seconds go from the first
look at its rows to the last line that is written, loading apart; it runs before the others and after them, and both
runs count. ``--a``, ``--b`` and ``--c`` say on how many of the rows each arm is timed, where that is not all: rates are
compared, and the ids of every row that an arm answered. ``cpu_ratio`` compares seconds of the processor, which tell
more than those of the clock where other programs run; then give one BLAS thread.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from recording import origin, tell

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError

Ids = list[list[int]]
SETTLED = 0.1  # of the rows, after which all that is kept once is there


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record.

    Raises:
        DaariError: what the user can mend.
    """
    from daari_mlx.measure.about import subject
    from daari_mlx.measure.bench import check_prompts
    from daari_mlx.share.find import load_graph
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_prompts

    teacher, graph = load_teacher(args.model, adapter_path=args.adapter_path), load_graph(args.graph)
    rows = read_prompts(args.data, teacher.tokenizer, limit=args.n).items
    overlap = check_prompts(teacher, graph, rows, args.max_tokens, False)
    prompts = [row.tokens for row in rows]
    jobs = [job(teacher, graph, args)]
    arms = {
        "generate": [timed(lambda: one_by_one(teacher, prompts[: args.a], args.max_tokens), args.a)],
        "batch_generate": [
            {
                "rows_at_once": size,
                **timed(lambda s=size: batched(teacher, prompts[: args.b], args.max_tokens, s), args.b),
            }
            for size in args.sizes
        ],
        "batch_generate, shared prompt cache": [
            {
                "rows_at_once": size,
                **timed(lambda s=size: shared(teacher, prompts[: args.c], args.max_tokens, s), args.c),
            }
            for size in args.sizes
        ],
    }
    jobs.append(job(teacher, graph, args))
    ours = jobs[-1].pop("ids")
    assert jobs[0].pop("ids") == ours
    rate, busy = (len(ours) * len(jobs) / sum(run[clock] for run in jobs) for clock in ("seconds", "cpu_seconds"))
    found = {}
    for name, runs in arms.items():
        best = min(runs, key=lambda run: run["cpu_seconds"] / run["rows"])
        equal = [ids == own for run in runs for ids, own in zip(run.pop("ids"), ours, strict=False)]
        found[name] = {
            "ratio": rate / best["rows_per_second"],
            "cpu_ratio": busy / (best["rows"] / best["cpu_seconds"]),
            "identical": sum(equal),
            "compared": len(equal),
            "best": best,
            "runs": runs,
        }
    return {
        "what": "a job over a file",
        **origin(),
        **subject(teacher, graph, None),
        "data": args.data,
        "n": len(rows),
        "distinct_prompts": len({tuple(prompt) for prompt in prompts}),
        "overlap": overlap,
        "prompt_tokens": sum(map(len, prompts)),
        "max_tokens": args.max_tokens,
        "rows_per_second": rate,
        "rows_per_cpu_second": busy,
        "jobs": jobs,
        "against": found,
        "ok": all(arm["identical"] == arm["compared"] for arm in found.values()),
    }


def job(teacher: Any, graph: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The whole job once: its figures, the ids of its answers, and memory held a tenth of the way and at the end."""
    from daari_mlx.decode.options import Length, Sampling
    from daari_mlx.job import run as running
    from daari_mlx.job.asks import Asker
    from daari_mlx.job.journal import Journal
    from daari_mlx.job.requests import Manner
    from daari_mlx.job.shape import RowShape

    ids: dict[bytes, list[int]] = {}
    held: list[int] = []
    add = Journal.add

    def kept(self: Journal, key: bytes, answer: Any) -> Any:
        ids[key] = answer.tokens
        held.append(resident())
        return add(self, key, answer)

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.jsonl"
        wanted = running.Job(
            data=args.data,
            out=out,
            shape=lambda first: RowShape(Asker()),
            asking={},
            manner=Manner(Length(args.max_tokens), Sampling()),
            limit=args.n,
            concurrency="auto" if args.concurrency == "auto" else int(args.concurrency),
        )
        gc.collect()
        Journal.add = kept  # type: ignore[method-assign]
        start, busy = perf_counter(), process_time()
        try:
            done = running.run_job(teacher, graph, wanted)
        finally:
            Journal.add = add  # type: ignore[method-assign]
        seconds, busy = perf_counter() - start, process_time() - busy
        keys = [Asker()(json.loads(line)).key for line in Path(args.data).read_text().splitlines()[: args.n]]
    return {
        **(done or {}),
        "answering_seconds": (done or {}).get("seconds"),
        "seconds": seconds,
        "cpu_seconds": busy,
        "resident_early": held[int(SETTLED * len(held))],
        "resident_late": held[-1],
        "ids": [ids[key] for key in keys],
    }


def resident() -> int:
    """Bytes that this process holds in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def timed(work: Callable[[], Ids], rows: int) -> dict[str, Any]:
    """Rows a second, and the ids."""
    gc.collect()
    start, busy = perf_counter(), process_time()
    ids = work()
    seconds, busy = perf_counter() - start, process_time() - busy
    return {"rows": rows, "seconds": seconds, "cpu_seconds": busy, "rows_per_second": rows / seconds, "ids": ids}


def one_by_one(teacher: Any, prompts: Ids, max_tokens: int) -> Ids:
    """mlx_lm.generate's own loop, whose tokens are looked at."""
    import mlx_lm

    return [
        [r.token for r in mlx_lm.stream_generate(teacher.model, teacher.tokenizer, prompt, max_tokens=max_tokens)]
        for prompt in prompts
    ]


def batched(teacher: Any, prompts: Ids, max_tokens: int, size: int, caches: Any = None) -> Ids:
    """mlx_lm.batch_generate; it leaves out end tokens, which are put back."""
    import mlx_lm

    response = mlx_lm.batch_generate(
        teacher.model,
        teacher.tokenizer,
        prompts,
        prompt_caches=caches,
        max_tokens=max_tokens,
        return_token_ids=True,
        completion_batch_size=size,
        prefill_batch_size=min(size, 8),
    )
    end = [teacher.tokenizer.eos_token_id]
    return [ids if len(ids) == max_tokens else ids + end for ids in response.token_ids]


def shared(teacher: Any, prompts: Ids, max_tokens: int, size: int) -> Ids:
    """The same, with what all prompts have in common read once, and its cache copied for every row."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    first, last = min(prompts), max(prompts)
    common = next(
        (k for k, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)) - 1
    )
    cache = make_prompt_cache(teacher.model)
    teacher.model(mx.array([first[:common]]), cache=cache)
    mx.eval([c.state for c in cache])
    said: Ids = []
    for start in range(0, len(prompts), 4 * size):  # all copies at once would take the memory of all rows
        part = prompts[start : start + 4 * size]
        caches = [copy.deepcopy(cache) for _ in part]
        said += batched(teacher, [prompt[common:] for prompt in part], max_tokens, size, caches)
    return said


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter-path")
    parser.add_argument("--graph", required=True)
    parser.add_argument("--data", required=True, help="chats, of which none was compiled into the graph")
    parser.add_argument("-n", type=int, default=400)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--concurrency", default="auto")
    for arm, rows in (("a", 40), ("b", 96), ("c", 400)):
        parser.add_argument(f"--{arm}", type=int, default=rows, help=f"rows that arm ({arm}) is timed on")
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32], help="batch sizes of (b) and (c)")
    parser.add_argument("--out")
    args = parser.parse_args()
    for arm in "abc":
        setattr(args, arm, min(getattr(args, arm), args.n))
    try:
        record = measure(args)
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    tell(record, args.out)
    return 0 if record["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
