"""What a JSON schema costs: answers under one against answers without, prompt by prompt, drafted and not.

Usage: ``python scripts/bench/bench_grammar.py --model FOLDER --graph FOLDER --data test.jsonl [-n 20] [--out FILE]``;
prints one JSON object. Who goes first takes turns. Where the schema changes an answer, other text is drafted, better
or worse than the teacher's own: the answers that it leaves alone are therefore counted apart, and tell what the mask
itself costs. Undrafted answers are mlx-lm's own loop in both arms.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from recording import origin, tell

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar
from daari_mlx.measure.records import Spread

TARGET = 0.9  # of the unconstrained tokens a second
MODES = ("drafted", "undrafted")
DEMO = {  # the demo's answers
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
SMS = {  # what the prompts of the SMS data ask for
    "type": "object",
    "properties": {
        "label": {"enum": ["spam", "ham"]},
        "category": {"type": "string", "maxLength": 24},
        "risk": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["label", "category", "risk"],
    "additionalProperties": False,
}
SCHEMAS = {"demo": DEMO, "sms": SMS}


class Timed:
    """A grammar whose own time is added up."""

    def __init__(self, grammar: Any) -> None:
        self.grammar, self.inner, self.seconds = grammar, grammar, 0.0

    def for_answer(self, prompt: list[int], **where: Any) -> Timed:
        self.inner = self._timed(self.grammar.for_answer, prompt, **where)
        return self

    def __call__(self, tokens: Any, logits: Any) -> Any:
        return self._timed(self.inner, tokens, logits)

    def allowed(self, history: list[int], draft: list[int]) -> int:
        return self._timed(self.inner.allowed, history, draft)

    def process_rows(self, history: list[int], draft: list[int], logits: Any) -> Any:
        return self._timed(self.inner.process_rows, history, draft, logits)

    def _timed(self, call: Any, *args: Any, **named: Any) -> Any:
        start = perf_counter()
        try:
            return call(*args, **named)
        finally:
            self.seconds += perf_counter() - start


@dataclass
class Answer:
    """One answer; ``seconds`` is decoding alone, from the end of prefill on, ``grammar_seconds`` the mask in it."""

    ids: list[int]
    text: str
    seconds: float
    statistics: Statistics
    grammar_seconds: float = 0.0

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
    from daari_mlx.decode.grammar import json_schema_processor
    from daari_mlx.share.find import load_graph
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import read_prompts

    teacher, graph = load_teacher(args.model, adapter_path=args.adapter_path), load_graph(args.graph)
    schema = SCHEMAS.get(args.schema) or json.loads(Path(args.schema).read_text(encoding="utf-8"))
    prompts = read_prompts(args.data, teacher.tokenizer, split="test", limit=args.n).items
    timed = Timed(json_schema_processor(teacher.tokenizer, schema))
    arms = {(mode, held): {"logits_processors": [timed]} if held else {} for mode in MODES for held in (False, True)}

    def answer(prompt: list[int], arm: tuple[str, bool]) -> Answer:
        length = args.num_draft_tokens if arm[0] == "drafted" else 0
        before = timed.seconds
        found = _answer(teacher, graph, prompt, args, length, arms[arm])
        found.grammar_seconds = timed.seconds - before
        return found

    for arm in arms:
        answer(prompts[0].tokens, arm)
    pairs: dict[str, list[tuple[Answer, Answer]]] = {mode: [] for mode in MODES}
    unlike_plain = 0
    for number, prompt in enumerate(bar(prompts, desc="grammar", unit="prompt")):
        order = list(arms)[number % 4 :] + list(arms)[: number % 4]
        found = {arm: answer(prompt.tokens, arm) for arm in order}
        for mode in MODES:
            pairs[mode].append((found[mode, False], found[mode, True]))
        unlike_plain += found["drafted", True].ids != found["undrafted", True].ids
    ends = set(teacher.tokenizer.eos_token_ids)
    modes = {mode: _figures(pairs[mode], ends) for mode in MODES}
    return {
        "what": "json schema",
        **origin(),
        "teacher": {"source": teacher.source, "adapter_path": args.adapter_path},
        "graph": {"nodes": graph.size, "layer": graph.layer},
        "schema": args.schema,
        "prompts": len(prompts),
        "num_draft_tokens": args.num_draft_tokens,
        "max_tokens": args.max_tokens,
        "target": TARGET,
        "met": all(figures["ratio_of_same_answers"] >= TARGET for figures in modes.values()),
        "unlike_plain": unlike_plain,
        **modes,
    }


def _answer(
    teacher: Any, graph: Any, prompt: list[int], args: argparse.Namespace, length: Any, options: dict[str, Any]
) -> Answer:
    from daari_mlx.decode.generate import stream_generate

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
        num_draft_tokens=length,
        prompt_progress_callback=progress,
        **options,
    ):
        last = perf_counter()
        steps.append(step)
    return Answer([s.token for s in steps], "".join(s.text for s in steps), last - prefilled, steps[-1].statistics)


def _figures(pairs: list[tuple[Answer, Answer]], ends: set[int]) -> dict[str, Any]:
    """Of one mode: (free, held) answers of each prompt. ``ratio`` is held tokens a second over free ones."""
    same = [pair for pair in pairs if pair[0].ids == pair[1].ids]
    whole = [held for _, held in pairs if held.ids[-1] in ends]
    forwards = sum(held.statistics.forwards for _, held in pairs)

    def ratios(of: list[tuple[Answer, Answer]]) -> dict[str, float]:
        return asdict(Spread.of([held.speed / free.speed for free, held in of]))

    return {
        "free_tokens_per_second": asdict(Spread.of([free.speed for free, _ in pairs])),
        "held_tokens_per_second": asdict(Spread.of([held.speed for _, held in pairs])),
        "ratio": ratios(pairs),
        "same_answers": len(same),
        "ratio_of_same_answers": ratios(same or pairs)["median"],
        "ratio_of_total_time": _total(same or pairs),
        "free_tokens_per_call": sum(len(f.ids) for f, _ in pairs) / sum(f.statistics.forwards for f, _ in pairs),
        "held_tokens_per_call": sum(len(h.ids) for _, h in pairs) / forwards,
        "grammar_ms_per_call": sum(held.grammar_seconds for _, held in pairs) / forwards * 1000,
        "ms_per_call": sum(held.seconds for _, held in pairs) / forwards * 1000,
        "ended": len(whole),
        "parsed": sum(_parses(held.text) for held in whole),
    }


def _total(pairs: list[tuple[Answer, Answer]]) -> float:
    """All held tokens over all their seconds, against the same of free ones."""
    free, held = ([pair[side] for pair in pairs] for side in (0, 1))
    speeds = [sum(len(a.ids) for a in answers) / sum(a.seconds for a in answers) for answers in (held, free)]
    return speeds[0] / speeds[1]


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
    parser.add_argument("--adapter-path", help="the teacher's adapter")
    parser.add_argument("--schema", default="demo", help="demo, sms, or a file with a schema (default: demo)")
    parser.add_argument("--out", metavar="FILE", help="append the record to this file")
    args = parser.parse_args(argv)
    try:
        record = measure(args)
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    tell(record, args.out)
    unparsed = any(record[mode]["parsed"] < record[mode]["ended"] for mode in MODES)
    return int(not record["met"] or record["unlike_plain"] > 0 or unparsed)


if __name__ == "__main__":
    sys.exit(main())
