"""Measuring: plain ``mlx_lm.stream_generate`` and ours, prompt by prompt in one process."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from time import perf_counter
from typing import Any

import mlx.core as mx

from daari_mlx.decode import generate as decode
from daari_mlx.decode.choose import graph_drafter
from daari_mlx.decode.options import DraftLength
from daari_mlx.draft.drafter import Drafter
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_draft_length, check_max_tokens, check_whole
from daari_mlx.ground.progress import Told, bar
from daari_mlx.measure.about import environment, subject
from daari_mlx.measure.identity import Verdict, bound_of, compare, stream_plain
from daari_mlx.measure.records import BenchRecord, Row
from daari_mlx.teacher.judge import LogitsProcessor
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.text.data import Prompt
from daari_mlx.text.identity import is_known, prompt_key

SHOWN = 5  # rows that an error names

Arm = Callable[..., Iterator[Any]]


@dataclass(frozen=True)
class _Run:
    """One answer: its token ids, its rounds (as in ``Row``; for ours only), and its times (as in ``Row``)."""

    ids: list[int]
    rounds: list[tuple[int, int, int]]
    statistics: Statistics
    dtype: mx.Dtype
    seconds: float
    wall_seconds: float


def run_bench(
    teacher: Teacher,
    graph: Graph | None,
    prompts: list[Prompt],
    *,
    drafter: Drafter | None = None,
    max_tokens: int = 256,
    num_draft_tokens: DraftLength = "auto",
    logits_processors: list[LogitsProcessor] | None = None,
    allow_overlap: bool = False,
    seed: int = 0,
    warmup: int = 1,
    command: str | None = None,
) -> BenchRecord:
    """Decode every prompt greedily with plain mlx-lm and with the graph or drafter; who goes first alternates.

    Args:
        graph: None where a drafter is given.
        prompts: at least one, none of which the graph was compiled from.
        drafter: any other drafter, in place of a graph; one that uses this graph too is given with it.
        max_tokens: the longest answer; -1 for no limit.
        num_draft_tokens: see :func:`daari_mlx.stream_generate`.
        logits_processors: for both arms, so what they do may depend on nothing but the tokens that they are shown, and
            where an answer begins.
        allow_overlap: take prompts that the graph was compiled from as well; the record says how many.
        seed: of MLX's random numbers, set anew before each answer.
        warmup: how many of the prompts both arms decode first, uncounted.
        command: what the user typed, for the record.

    Raises:
        DaariError: before anything runs: a graph of another teacher, a prompt that is too long, an overlap.
    """
    check_draft_length(num_draft_tokens)
    check_whole("warmup", warmup, 0)
    graph = None if graph is None else attach(graph, teacher.model, teacher.tokenizer)
    overlap = check_prompts(teacher, graph, prompts, max_tokens, allow_overlap)
    shared = {} if logits_processors is None else {"logits_processors": logits_processors}
    plain = _plain(teacher, max_tokens, shared)
    alone = None if drafter else graph
    drafting: dict[str, Any] = {"graph": alone, "drafter": drafter, "num_draft_tokens": num_draft_tokens}
    if alone is not None and num_draft_tokens and refuses_blocks(teacher.model) is None:
        # one for all answers, as an engine has: it learns as it goes
        remembering = graph_drafter(alone, teacher.model, teacher.tokenizer, num_draft_tokens)
        drafting |= {"graph": None, "drafter": remembering}
    ours = _ours(teacher, max_tokens, drafting, shared)
    about = {
        "command": command,
        **environment(),
        **subject(teacher, graph, drafter),
        "max_tokens": max_tokens,
        "num_draft_tokens": num_draft_tokens,
        "logits_processors": [type(p).__name__ for p in logits_processors or []],
        "seed": seed,
        "warmup": min(warmup, len(prompts)),
        "overlap": overlap,
    }
    rows, uncounted = [], prompts[:warmup]
    with bar(total=2 * len(uncounted) + 2 * len(prompts), desc="benchmark", unit="answer") as shown:

        def run(arm: Arm, prompt: Prompt) -> _Run:
            return _timed(arm, prompt.tokens, seed, max_tokens, shown.unit())

        for prompt in uncounted:
            run(plain, prompt)
            run(ours, prompt)
        for number, prompt in enumerate(prompts):
            order = (plain, ours) if number % 2 == 0 else (ours, plain)
            runs = {arm: run(arm, prompt) for arm in order}
            base, own = runs[plain], runs[ours]
            bound = bound_of(base.dtype)
            verdict = compare(teacher, prompt.tokens, base.ids, own.ids, max_tokens, bound, **shared)
            rows.append(_row(prompt, base, own, verdict, plain_first=order[0] is plain))
    about |= {"dtype": str(base.dtype).removeprefix("mlx.core."), "drafting_off": own.statistics.drafting_off}
    return BenchRecord(about, bound, tuple(rows))


def check_prompts(
    teacher: Teacher, graph: Graph | None, prompts: list[Prompt], max_tokens: int, allow_overlap: bool
) -> int:
    """How many prompts the graph was compiled from; raises for what cannot be measured."""
    if not prompts:
        raise DaariError("There are no prompts to measure: give at least one.")
    check_max_tokens(max_tokens)
    limit = teacher.context_length
    long = [p for p in prompts if limit is not None and len(p.tokens) >= limit]
    if long:
        raise DaariError(
            f"{len(long)} of {len(prompts)} prompts leave no room in the teacher's context of {limit} "
            f"tokens: {_named(long)}. Leave them out."
        )
    compiled = set() if graph is None else set(graph.prompts.tolist())
    known = [p for p in prompts if is_known(p.tokens, prompt_key(p.tokens, p.identity), compiled)]
    if known and not allow_overlap:
        raise DaariError(
            f"The graph was compiled from {len(known)} of these {len(prompts)} prompts: {_named(known)}. What "
            "it has seen measures nothing: give held-out prompts, or allow the overlap (--allow-overlap), which "
            "the record will then tell."
        )
    return len(known)


def _named(prompts: list[Prompt]) -> str:
    names = ", ".join(p.source for p in prompts[:SHOWN])
    return names + (f" and {len(prompts) - SHOWN} more" if len(prompts) > SHOWN else "")


def _plain(teacher: Teacher, max_tokens: int, shared: dict[str, Any]) -> Arm:
    def plain(prompt: list[int], **options: Any) -> Iterator[Any]:
        return stream_plain(teacher, prompt, max_tokens, **shared, **options)

    return plain


def _ours(teacher: Teacher, max_tokens: int, drafting: dict[str, Any], shared: dict[str, Any]) -> Arm:
    def ours(prompt: list[int], **options: Any) -> Iterator[Any]:
        return decode.stream_generate(
            model=teacher.model,
            tokenizer=teacher.tokenizer,
            prompt=prompt,
            max_tokens=max_tokens,
            **drafting,
            **shared,
            **options,
        )

    return ours


def _timed(arm: Arm, prompt: list[int], seed: int, max_tokens: int, told: Told) -> _Run:
    """One answer, with garbage collected before it and not during it; ``told`` how far it is."""
    prefilled = last = 0.0
    end = 0 if max_tokens < 0 else len(prompt) + max_tokens

    def progress(done: int, total: int) -> None:
        # Both arms tell right after evaluating the cache that it holds all prompt tokens but the last.
        nonlocal prefilled
        if done == total - 1:
            prefilled = perf_counter()
        told(done, end)

    steps, counts = [], Statistics()
    mx.random.seed(seed)
    gc.collect()
    gc.disable()
    try:
        start = perf_counter()
        for response in arm(prompt, prompt_progress_callback=progress):
            last = perf_counter()
            counts = getattr(response, "statistics", counts)  # plain's responses have none
            steps.append((response.token, response.from_draft, counts.forwards, counts.drafted))
            told(len(prompt) + len(steps), end)
    finally:
        gc.enable()
        # Plain has started one forward more than it needs: let it end here, not within the other arm's time.
        mx.synchronize(importlib.import_module("mlx_lm.generate").generation_stream)
    told(1, 1)
    ids, dtype = [step[0] for step in steps], response.logprobs.dtype
    return _Run(ids, _rounds(steps), counts, dtype, last - prefilled, last - start)


def _rounds(steps: list[tuple[int, bool, int, int]]) -> list[tuple[int, int, int]]:
    """(drafted, accepted, emitted) of each forward.

    Args:
        steps: (token, from_draft, forwards so far, drafted so far) of each token.
    """
    rounds, before = [], 0
    for _, group in groupby(steps, key=lambda step: step[2]):
        emitted = list(group)
        drafted = emitted[0][3]
        rounds.append((drafted - before, sum(step[1] for step in emitted), len(emitted)))
        before = drafted
    return rounds


def _row(prompt: Prompt, plain: _Run, ours: _Run, verdict: Verdict, plain_first: bool) -> Row:
    same = plain.ids == ours.ids
    return Row(
        source=prompt.source,
        prompt_tokens=len(prompt.tokens),
        plain_tokens=len(plain.ids),
        tokens=len(ours.ids),
        **verdict._asdict(),
        plain_ids=None if same else tuple(plain.ids),
        ids=None if same else tuple(ours.ids),
        plain_seconds=plain.seconds,
        seconds=ours.seconds,
        plain_wall_seconds=plain.wall_seconds,
        wall_seconds=ours.wall_seconds,
        forwards=ours.statistics.forwards,
        drafted=ours.statistics.drafted,
        accepted=ours.statistics.accepted,
        draft_seconds=ours.statistics.draft_seconds,
        sources=dict(ours.statistics.sources),
        rounds=tuple(ours.rounds),
        plain_first=plain_first,
    )
