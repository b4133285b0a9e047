"""What a JSON schema drafts by itself, with no graph: tokens a forward, against plain decoding under the same schema.

Usage: ``python scripts/bench/bench_schema.py --model FOLDER --data DATA_FOLDER [-n 8] [--sets sms_spam wnut17]
[--out FILE]``; prints a record for each set and kind of white space. Each answer is decoded by mlx-lm's own loop and by
ours, under one grammar; token for token they have to be the same, or the exit status is 1. Where T(m) of this machine
is not measured yet, the lengths start from a published curve, as for any first-time user.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from recording import origin, tell

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar

TARGET = 3.0  # tokens a forward, with compact white space
CATEGORIES = [
    *("voicemail_callback", "adult_dating", "ringtone_content", "prize_claim", "telecom_offer", "finance_offer"),
    *("premium_subscription", "other_promo", "question", "later_reply", "plans", "work_study", "greeting_affection"),
    "personal",
]


def record_of(**fields: Any) -> dict[str, Any]:
    """The schema of an object with just these fields."""
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


NAMES = {"type": "array", "items": {"type": "string", "maxLength": 40}, "maxItems": 4}
SCHEMAS = {  # the fields that the prompts of each set ask for
    "sms_spam": record_of(
        label={"enum": ["spam", "ham"]},
        category={"enum": CATEGORIES},
        risk={"type": "integer", "minimum": 0, "maximum": 100},
    ),
    "wnut17": record_of(
        person=NAMES, location=NAMES, group=NAMES, creative_work=NAMES, corporation=NAMES, product=NAMES
    ),
}


def measure(args: argparse.Namespace, teacher: Any, name: str, space: Any) -> dict[str, Any]:
    """The record of one set with one kind of white space."""
    from daari_mlx.cost import machine
    from daari_mlx.text.data import read_prompts

    data = Path(args.data) / name
    prompts = read_prompts(data, teacher.tokenizer, split="test", limit=args.n).items
    found = _figures(args, teacher, prompts, SCHEMAS[name], space)
    cost = machine.ready_cost(teacher.model).at(0)
    return {
        "what": "schema alone",
        **origin(),
        "set": name,
        "whitespace": space,
        "teacher": {"source": teacher.source, "adapter_path": args.adapter_path},
        "prompts": len(prompts),
        "max_tokens": args.max_tokens,
        "num_draft_tokens": args.num_draft_tokens,
        "cost": {"measured": machine.measured_before(teacher.model) is not None, "rows": cost.rows, "T": cost.relative},
        "target": TARGET,
        "met": found["tokens_per_forward"] >= TARGET or space != "compact",
        **found,
    }


def _figures(args: argparse.Namespace, teacher: Any, prompts: list[Any], schema: Any, space: Any) -> dict[str, Any]:
    import mlx_lm

    from daari_mlx import stream_generate
    from daari_mlx.decode.grammar import json_schema_processor

    grammar = json_schema_processor(teacher.tokenizer, schema, space)
    whole, same, seconds, ended = Statistics(), 0, [0.0, 0.0], 0
    for prompt in bar(prompts, desc=f"white space: {space}", unit="prompt"):
        asked = [teacher.model, teacher.tokenizer, prompt.tokens]
        start = perf_counter()
        held = {"max_tokens": args.max_tokens, "logits_processors": [grammar.for_answer(prompt.tokens)]}
        plain = [step.token for step in mlx_lm.stream_generate(*asked, **held)]
        middle = perf_counter()
        held |= {"logits_processors": [grammar], "num_draft_tokens": args.num_draft_tokens}
        steps = list(stream_generate(*asked, **held))
        seconds[0] += middle - start
        seconds[1] += perf_counter() - middle
        same += [step.token for step in steps] == plain
        ended += steps[-1].finish_reason == "stop"
        whole.add(steps[-1].statistics)
    return {
        "identical": same,
        "ended": ended,
        "tokens": whole.tokens,
        "forwards": whole.forwards,
        "tokens_per_forward": whole.tokens_per_forward,
        "drafted": whole.drafted,
        "accepted": whole.accepted,
        "acceptance_rate": whole.acceptance_rate,
        "sources": whole.sources,
        "draft_ms_per_forward": 1000 * whole.draft_seconds / whole.forwards,
        "seconds": {"plain": seconds[0], "drafted": seconds[1]},  # prefill in both
    }


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status, 1 where an answer is not plain's or the target is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="the teacher")
    parser.add_argument("--adapter-path", help="the teacher's adapter")
    parser.add_argument("--data", required=True, help="the folder in which the sets' folders lie")
    parser.add_argument("--sets", nargs="+", choices=sorted(SCHEMAS), default=sorted(SCHEMAS))
    parser.add_argument("--whitespace", nargs="+", choices=["compact", "spaced", "any"], default=["compact", "any"])
    parser.add_argument("-n", type=int, default=8, help="prompts of each set (default: 8)")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--num-draft-tokens", type=lambda v: v if v == "auto" else int(v), default="auto")
    parser.add_argument("--out", metavar="FILE", help="append the records to this file")
    args = parser.parse_args(argv)
    from daari_mlx.teacher.load import load_teacher

    try:
        teacher, good = load_teacher(args.model, adapter_path=args.adapter_path), True
        for name, space in product(args.sets, args.whitespace):
            record = measure(args, teacher, name, space)
            tell(record, args.out)
            good = good and record["identical"] == record["prompts"] and record["met"]
    except DaariError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
