"""How far cheap tiers of a teacher agree with it: acceptance and tokens a verifier pass, one JSON line a data set.

    python scripts/bench/bench_tier.py --model M [--adapter-path A] --data FOLDER [-n 24] >> results/tier.jsonl

The verifier is the teacher in 8 bits. Its drafters: itself; the teacher in 4 bits; that with some layers left out, as
``daari-mlx tier --drop-layers auto`` chooses them on the training rows; and, for what bounds acceptance, other bits and
groups, and 4-bit drafts that end where the drafter itself is unsure. Two measurements:

* replayed: one forward over the verifier's own answer tells at which tokens a drafter agrees, and so what greedy blocks
  get accepted, exactly;
* run: the pair itself on the first prompts, its answers compared with mlx-lm's, its passes with the replayed ones.

Without kernels for packed weights (Linux) those are unpacked to float32 first: the same values, so the same figures but
for time, which is not measured here.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass
from statistics import mean
from typing import Any

from recording import origin, tell

from daari_mlx.cost.curves import CURVES
from daari_mlx.decode.speculative import SpeculativeModel
from daari_mlx.ground.progress import bar
from daari_mlx.measure.identity import bound_of, compare, stream_plain
from daari_mlx.measure.records import FAILED
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.text.data import Sequence, read_prompts
from daari_mlx.tier.choice import Measured, Tier, fastest, ladder
from daari_mlx.tier.depth import droppable_units, without_layers
from daari_mlx.tier.make import agreement, dequantised, fuse, quantised, read_config, weight_bytes

GROUP = 64
LADDER = ((3, 64), (4, 32), (5, 64), (5, 32), (6, 64), (6, 32), (8, 32))  # bits and group of drafters for comparison
SURE = 0.9  # a verifier's own probability for its token from which it is called sure
CUTS = (0.5, 0.7, 0.8, 0.9)  # a drafter's own probability below which its draft ends


@dataclass(frozen=True)
class Counts:
    """Blocks of one drafter, added up."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(a + b for a, b in zip(asdict(self).values(), asdict(other).values(), strict=True)))

    def as_dict(self) -> dict[str, Any]:
        """The counts, acceptance and tokens a pass."""
        return {
            **asdict(self),
            "acceptance": self.accepted / max(self.drafted, 1),
            "tokens_per_pass": self.tokens / max(self.passes, 1),
        }


def replayed(agrees: list[bool], block: int, budget: int, goes_on: list[bool] | None = None) -> Counts:
    """What blocks get accepted of a drafter that agrees at these tokens.

    Args:
        agrees: one flag for each token of the answer.
        block: draft tokens a pass.
        budget: tokens that the answer may have; drafts shrink towards its end.
        goes_on: where the drafter is sure enough to draft its token at all; None for everywhere. What it drafts behind
            a wrong token is taken to be as long as if that had been right.
    """
    place, counts = 0, Counts()
    while place < len(agrees):
        room, run = min(block, budget - place - 1), 0
        if goes_on is not None:
            room = next((k for k in range(room) if not all(goes_on[place + k : place + k + 1])), room)
        while run < room and place + run < len(agrees) and agrees[place + run]:
            run += 1
        ended = place + run == len(agrees)  # with the end drafted too: nothing is drafted behind it
        emitted = run if ended else run + 1
        counts += Counts(emitted, 1, run if ended else room, run)
        place += emitted
    return counts


class Bench:
    """One verifier on one data set."""

    def __init__(self, args: argparse.Namespace) -> None:
        import mlx.core as mx  # here: daari_mlx loads a fast BLAS, which must happen before

        self.args, self.float32 = args, mx.float32
        self.teacher = load_teacher(args.model, adapter_path=args.adapter_path)
        self.config = read_config(args.model)
        fuse(self.teacher.model)
        self.verifier = self.tier(8)
        found = read_prompts(args.data, self.teacher.tokenizer, split="test").items
        self.skipped = sum(len(p.tokens) > args.max_prompt for p in found)
        self.prompts = [p for p in found if len(p.tokens) <= args.max_prompt][: args.n]
        self.answers = self.answered(self.prompts, "plain answers", args.max_tokens)

    def tier(self, bits: int, dropped: tuple[int, ...] = (), group: int = GROUP) -> Teacher:
        """The teacher in some bits, unpacked, without some layers."""
        model, config = quantised(self.teacher.model, self.config, bits, group)
        model, config = without_layers(model, config, dropped)
        return Teacher(
            dequantised(model, config, self.float32)[0], self.teacher.tokenizer, f"{bits} bits, {len(dropped)} dropped"
        )

    def answered(self, prompts: list[Any], what: str, max_tokens: int) -> list[Sequence]:
        """The verifier's own greedy answers, by mlx-lm."""
        found = []
        for prompt in bar(prompts, desc=what, unit="prompt"):
            ids = [step.token for step in stream_plain(self.verifier, prompt.tokens, max_tokens)]
            found.append(Sequence(prompt.tokens + ids, len(prompt.tokens), prompt.row, prompt.source))
        return found

    def arm(self, drafter: Teacher, run: int) -> dict[str, Any]:
        """One drafter: replayed on all answers, run on the first ``run``."""
        measured = agreement(drafter.model, self.answers)
        block, budget = self.args.block, self.args.max_tokens
        counts = sum((replayed(agrees, block, budget) for agrees in measured.agrees), Counts())
        record = {"agreement": measured.agreement, "replayed": counts.as_dict()}
        return record if run == 0 else {**record, "run": self.run(drafter, self.answers[:run])}

    def run(self, drafter: Teacher, answers: list[Sequence]) -> dict[str, Any]:
        """The pair itself; ``full_passes`` counts the answers of which every pass but the last gave a whole block."""
        both = SpeculativeModel(drafter, self.verifier, self.args.block)
        counts, expected, failed, full = Counts(), Counts(), 0, 0
        measured = {tuple(s.tokens): agreement(drafter.model, [s]).agrees[0] for s in answers}
        for sequence in bar(answers, desc="pair", unit="prompt"):
            prompt, own = sequence.tokens[: sequence.answer_start], sequence.tokens[sequence.answer_start :]
            answer = both.generate(prompt, max_tokens=self.args.max_tokens)
            verdict = compare(self.verifier, prompt, own, answer.tokens, self.args.max_tokens, bound_of(self.float32))
            failed += verdict.verdict == FAILED
            stats = answer.statistics
            full += stats.forwards == -(-stats.tokens // (self.args.block + 1))
            counts += Counts(stats.tokens, stats.forwards, stats.drafted, stats.accepted)
            expected += replayed(measured[tuple(sequence.tokens)], self.args.block, self.args.max_tokens)
        return {
            **counts.as_dict(),
            "prompts": len(answers),
            "unlike_plain": failed,
            "replayed_passes": expected.passes,
            "full_passes": full,
        }

    def rungs(self) -> tuple[list[Tier], Tier]:
        """Tiers in 4 bits with ever fewer layers, chosen on the verifier's answers to training rows; the fastest."""
        rows = read_prompts(self.args.data, self.teacher.tokenizer, split="train").items
        rows = [p for p in rows if len(p.tokens) <= self.args.max_prompt][: self.args.train]
        answers = self.answered(rows, "training answers", self.args.train_tokens)
        packed, config = quantised(self.teacher.model, self.config, 4, GROUP)
        model, unpacked = dequantised(packed, config, self.float32)
        full = weight_bytes(quantised(self.teacher.model, self.config, 8, GROUP)[0])
        cost = CURVES[self.args.curve].cost
        with bar(desc="leaving layers out", unit="tier") as progress:

            def measure(dropped: tuple[int, ...]) -> Measured:
                progress.update(1)
                return agreement(without_layers(model, unpacked, dropped)[0], answers)

            def weigh(dropped: tuple[int, ...]) -> float:
                return weight_bytes(without_layers(packed, config, dropped)[0]) / full

            tiers = ladder(droppable_units(model, unpacked), measure, weigh, cost, None)
        return tiers, fastest(tiers)

    def rung(self, tier: Tier) -> dict[str, Any]:
        """Agreement against cost, as ``tier.json`` tells it."""
        counts = sum((replayed(a, self.args.block, 10**6) for a in tier.measured.agrees), Counts())
        return {
            "dropped": list(tier.dropped),
            "weights": tier.weights,
            "agreement": tier.measured.agreement,
            "replayed": counts.as_dict(),
            "block": tier.block,
            "speed": tier.speed,
        }

    def bounds(self, drafter: Teacher) -> dict[str, Any]:
        """Where a drafter disagrees: how sure the verifier was there; and what the drafter's own doubts are worth."""
        own, found = agreement(self.verifier.model, self.answers), agreement(drafter.model, self.answers)
        pairs = [
            (promise, agrees)
            for promises, flags in zip(own.promises, found.agrees, strict=True)
            for promise, agrees in zip(promises, flags, strict=True)
        ]
        sure = [agrees for promise, agrees in pairs if promise >= SURE]
        unsure = [agrees for promise, agrees in pairs if promise < SURE]
        cut = {
            str(least): sum(
                (
                    replayed(flags, self.args.block, self.args.max_tokens, [p >= least for p in promises])
                    for flags, promises in zip(found.agrees, found.promises, strict=True)
                ),
                Counts(),
            ).as_dict()
            for least in CUTS
        }
        return {
            "drafts_end_where_it_is_less_sure_than": cut,
            "sure_from": SURE,
            "share_of_tokens_unsure": len(unsure) / len(pairs),
            "agreement_where_sure": mean(sure) if sure else None,
            "agreement_where_unsure": mean(unsure) if unsure else None,
        }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """The record of one data set."""
    bench = Bench(args)
    four = bench.tier(4)
    tiers, chosen = bench.rungs()
    dropped = chosen.dropped or tiers[1].dropped  # where auto keeps all layers, what the cheapest one to lose costs
    return {
        "measurement": "tier",
        "data": args.data,
        "adapter": args.adapter_path is not None,
        "prompts": len(bench.prompts),
        "longer_prompts_left_out": bench.skipped,
        "answer_tokens": sum(len(s.tokens) - s.answer_start for s in bench.answers),
        "block": args.block,
        "verifier": "8 bits, unpacked to float32",
        "drafters": {
            "itself": bench.arm(bench.verifier, args.run),
            "4 bits": {**bench.arm(four, args.run), "bounds": bench.bounds(four)},
            f"4 bits without {len(dropped)} layers": bench.arm(bench.tier(4, dropped), args.run),
            **{f"{b} bits, groups of {group}": bench.arm(bench.tier(b, group=group), 0) for b, group in LADDER},
        },
        "rungs": [bench.rung(tier) for tier in tiers],
        "auto_drops": list(chosen.dropped),
        "curve": args.curve,
        "training_prompts": args.train,
    }


def main() -> None:
    """Measure one data set and print its JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="the teacher")
    parser.add_argument("--adapter-path", help="its adapter, fused first")
    parser.add_argument("--data", required=True, help="a folder with train.jsonl and test.jsonl")
    parser.add_argument("-n", type=int, default=24, help="held-out prompts (default: 24)")
    parser.add_argument("--run", type=int, default=6, help="of which the pair itself answers so many (default: 6)")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--max-prompt", type=int, default=400, help="longer prompts are left out (default: 400 tokens)")
    parser.add_argument("--block", type=int, default=8)
    parser.add_argument("--curve", default="m3-max-4bit", choices=CURVES, help="T(m) that layers are chosen for")
    parser.add_argument("--train", type=int, default=6, help="training prompts that layers are chosen on (default: 6)")
    parser.add_argument("--train-tokens", type=int, default=48, help="tokens of an answer to those (default: 48)")
    args = parser.parse_args()
    tell({**measure(args), **origin()})


if __name__ == "__main__":
    main()
