"""What a JSON schema costs: drafted answers under one against drafted answers without, prompt by prompt.

Usage: ``python scripts/bench_grammar.py --model FOLDER --graph FOLDER --data test.jsonl [-n 20]``; prints one JSON
object. Who goes first alternates. Where the schema changes an answer, other text is drafted, better or worse than the
teacher's own: the answers that it leaves alone are therefore counted apart, and tell what the mask itself costs.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.accept import Statistics
from daari_mlx.errors import DaariError
from daari_mlx.progress import bar
from daari_mlx.records import Spread

TARGET = 0.9  # of the unconstrained tokens a second
SCHEMA = {  # the demo's answers
    "type": "object",
    "properties": {
        "label": {"enum": ["ham", "spam"]},
        "category": {"type": "string", "maxLength": 24},
        "risk": {"type": "integer", "minimum": 0, "maximum": 99},
        "evidence": {"type": "string", "maxLength": 160},
    },
    "required": ["label", "category", "risk", "evidence"],
    "additionalProperties": False,
}


class Timed:
    """A grammar whose own time is added up."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.seconds = inner, 0.0

    def __call__(self, tokens: Any, logits: Any) -> Any:
        return self._timed(self.inner, tokens, logits)

    def allowed(self, history: list[int], draft: list[int]) -> int:
        return self._timed(self.inner.allowed, history, draft)

    def process_rows(self, history: list[int], draft: list[int], logits: Any) -> Any:
        return self._timed(self.inner.process_rows, history, draft, logits)

    def _timed(self, call: Any, *args: Any) -> Any:
        start = perf_counter()
        try:
            return call(*args)
        finally:
            self.seconds += perf_counter() - start


@dataclass(frozen=True)
class Answer:
    """One answer; ``seconds`` is decoding alone, from the end of prefill on."""

    ids: list[int]
    text: str
    seconds: float
    statistics: Statistics

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return len(self.ids) / self.seconds


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record.

    Args:
        args: those of the command line.

    Raises:
        DaariError: what the user can mend.
    """
    from daari_mlx.artifact import load_graph
    from daari_mlx.data import read_prompts
    from daari_mlx.grammar import json_schema_processor
    from daari_mlx.identity import stream_plain
    from daari_mlx.teacher import load_teacher

    teacher, graph = load_teacher(args.model), load_graph(args.graph)
    schema = SCHEMA if args.json_schema is None else json.loads(Path(args.json_schema).read_text(encoding="utf-8"))
    prompts = read_prompts(args.data, teacher.tokenizer, split="test", limit=args.n).items
    timed = Timed(json_schema_processor(teacher.tokenizer, schema))
    arms: dict[str, dict[str, Any]] = {"free": {}, "held": {"logits_processors": [timed]}}

    def answer(prompt: list[int], arm: str) -> Answer:
        return _answer(teacher, graph, prompt, args, arms[arm])

    for arm in arms:
        answer(prompts[0].tokens, arm)
    timed.seconds, pairs, unlike_plain = 0.0, [], 0
    for number, prompt in enumerate(bar(prompts, desc="grammar", unit="prompt")):
        order = list(arms) if number % 2 == 0 else list(arms)[::-1]
        found = {arm: answer(prompt.tokens, arm) for arm in order}
        pairs.append((found["free"], found["held"]))
    for prompt, (_, held) in zip(prompts[: args.check], pairs, strict=False):
        plain = stream_plain(teacher, prompt.tokens, args.max_tokens, logits_processors=[timed.inner])
        unlike_plain += held.ids != [step.token for step in plain]
    return _record(args, pairs, timed.seconds, teacher.tokenizer.eos_token_ids, unlike_plain)


def _answer(teacher: Any, graph: Any, prompt: list[int], args: argparse.Namespace, options: dict[str, Any]) -> Answer:
    from daari_mlx.decode import stream_generate

    prefilled = last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal prefilled
        if done == total - 1:
            prefilled = perf_counter()

    steps = []
    gc.collect()
    for step in stream_generate(
        teacher.model,
        teacher.tokenizer,
        prompt,
        args.max_tokens,
        graph=graph,
        num_draft_tokens=args.num_draft_tokens,
        prompt_progress_callback=progress,
        **options,
    ):
        last = perf_counter()
        steps.append(step)
    return Answer([s.token for s in steps], "".join(s.text for s in steps), last - prefilled, steps[-1].statistics)


def _record(
    args: argparse.Namespace,
    pairs: list[tuple[Answer, Answer]],
    seconds: float,
    ends: Iterable[int],
    unlike_plain: int,
) -> dict[str, Any]:
    same = [pair for pair in pairs if pair[0].ids == pair[1].ids]
    whole = [held for _, held in pairs if held.ids[-1] in set(ends)]
    ratio = Spread.of([held.speed / free.speed for free, held in pairs]).median
    alike = Spread.of([held.speed / free.speed for free, held in same]).median if same else None
    forwards = sum(held.statistics.forwards for _, held in pairs)
    return {
        "what": "json schema",
        "prompts": len(pairs),
        "num_draft_tokens": args.num_draft_tokens,
        "max_tokens": args.max_tokens,
        "free_tokens_per_second": Spread.of([free.speed for free, _ in pairs]).median,
        "held_tokens_per_second": Spread.of([held.speed for _, held in pairs]).median,
        "ratio": ratio,
        "same_answers": len(same),
        "ratio_of_same_answers": alike,
        "target": TARGET,
        "met": (ratio if alike is None else alike) >= TARGET,
        "free_tokens_per_call": sum(len(f.ids) for f, _ in pairs) / sum(f.statistics.forwards for f, _ in pairs),
        "held_tokens_per_call": sum(len(h.ids) for _, h in pairs) / forwards,
        "grammar_ms_per_call": seconds / forwards * 1000,
        "ms_per_call": sum(held.seconds for _, held in pairs) / forwards * 1000,
        "ended": len(whole),
        "parsed": sum(_parses(held.text) for held in whole),
        "compared_with_plain": min(args.check, len(pairs)),
        "unlike_plain": unlike_plain,
        "load_average": os.getloadavg()[0],
    }


def _parses(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 where the target is missed or an answer is not as it should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="the teacher")
    parser.add_argument("--graph", required=True, help="its graph")
    parser.add_argument("--data", required=True, help="held-out prompts, JSONL")
    parser.add_argument("-n", type=int, default=20, help="how many prompts (default: 20)")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--num-draft-tokens", type=lambda v: v if v == "auto" else int(v), default="auto")
    parser.add_argument("--json-schema", metavar="FILE", help="a schema (default: that of the demo's answers)")
    parser.add_argument(
        "--check", type=int, default=4, help="answers compared with plain constrained ones (default: 4)"
    )
    try:
        record = measure(parser.parse_args(argv))
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(record, ensure_ascii=False))
    return int(not record["met"] or record["unlike_plain"] > 0 or record["parsed"] < record["ended"])


if __name__ == "__main__":
    sys.exit(main())
