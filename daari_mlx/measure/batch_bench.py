"""Measuring many answers at once: ``mlx_lm.batch_generate`` and ours on the same prompts, in turns, in one process."""

from __future__ import annotations

import gc
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import mlx.core as mx
import mlx_lm

from daari_mlx.batch.generate import batch_generate
from daari_mlx.batch.response import BatchResponse, total
from daari_mlx.decode.options import DraftLength
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import Told, bar
from daari_mlx.measure.about import environment, subject
from daari_mlx.measure.bench import check_prompts
from daari_mlx.measure.identity import bound_of, compare
from daari_mlx.teacher.load import Teacher
from daari_mlx.text.data import Prompt

ARMS = ("mlx_lm", "undrafted", "drafted")


@dataclass(frozen=True)
class Run:
    """One pass over all prompts.

    Attributes:
        decode_seconds: all but reading prompts.
        seconds: from the call to the last answer.
        tokens: emitted, end tokens included.
    """

    decode_seconds: float
    seconds: float
    tokens: int


def run_batch_bench(
    teacher: Teacher,
    graph: Graph,
    prompts: list[Prompt],
    sizes: list[int],
    *,
    max_tokens: int = 256,
    num_draft_tokens: DraftLength = "auto",
    allow_overlap: bool = False,
    repeats: int = 1,
    command: str | None = None,
) -> dict[str, Any]:
    """Answer all prompts greedily, so many at once, by mlx-lm, by ours without drafts, and by ours.

    Args:
        prompts: none of which the graph was compiled from.
        sizes: rows at once; rows that end are replaced by the next prompts.
        repeats: passes of each arm; the figures are those of the median pass.

    Returns:
        A record: per size each arm's tokens/s (reading prompts in and out), ratios, tokens a forward, and how many
        answers have the very ids that mlx-lm gives one at a time.

    Raises:
        DaariError: a graph of another teacher, an overlap, a size that is none.
    """
    if not sizes or any(size < 1 for size in sizes):
        raise DaariError(f"--concurrency is {sizes}: give numbers of rows from 1 on.")
    graph = attach(graph, teacher.model, teacher.tokenizer)
    overlap = check_prompts(teacher, graph, prompts, max_tokens, allow_overlap)
    ids = [prompt.tokens for prompt in prompts]
    with bar(total=len(ids), desc="one at a time", unit="prompt") as shown:
        alone = [_alone(teacher, prompt, max_tokens, shown.unit()) for prompt in ids]
    bound, found = bound_of(alone[0][1]), []
    with bar(total=len(sizes) * repeats * len(ARMS), desc="benchmark", unit="pass") as passed:
        for size in sizes:
            runs: dict[str, list[Run]] = {arm: [] for arm in ARMS}
            drafted: BatchResponse | None = None
            for number in range(repeats):
                for arm in ARMS if number % 2 == 0 else ARMS[::-1]:
                    run, response = _pass(arm, teacher, graph, ids, size, max_tokens, num_draft_tokens)
                    runs[arm].append(run)
                    drafted = response if arm == "drafted" else drafted
                    passed.update()
            assert drafted is not None and drafted.token_ids is not None
            verdicts = [
                compare(teacher, prompt, plain, own, max_tokens, bound).verdict
                for prompt, (plain, _), own in zip(ids, alone, drafted.token_ids, strict=True)
            ]
            found.append(_figures(size, runs, verdicts, drafted))
    return {
        "what": "many answers at once",
        "command": command,
        **environment(),
        **subject(teacher, graph, None),
        "data": prompts[0].source.rsplit(":", 1)[0],
        "n": len(prompts),
        "prompt_tokens": sum(map(len, ids)),
        "max_tokens": max_tokens,
        "num_draft_tokens": num_draft_tokens,
        "repeats": repeats,
        "overlap": overlap,
        "sizes": found,
        "ok": all(figures["failed"] == 0 for figures in found),
    }


def _alone(teacher: Teacher, prompt: list[int], max_tokens: int, told: Told) -> tuple[list[int], mx.Dtype]:
    """What mlx-lm answers to one prompt by itself, without the end token, and the type of its log-probabilities."""
    responses = []
    for response in mlx_lm.stream_generate(teacher.model, teacher.tokenizer, prompt, max_tokens=max_tokens):
        responses.append(response)
        told(len(responses), max_tokens)
    told(1, 1)
    said = [response.token for response in responses]
    return said[:-1] if responses[-1].finish_reason == "stop" else said, responses[-1].logprobs.dtype


def _pass(
    arm: str, teacher: Teacher, graph: Graph, ids: list[list[int]], size: int, max_tokens: int, length: DraftLength
) -> tuple[Run, Any]:
    """All prompts once."""
    gc.collect()
    options: dict[str, Any] = {"max_tokens": max_tokens, "return_token_ids": True, "completion_batch_size": size}
    start = perf_counter()
    if arm == "mlx_lm":
        options["prefill_batch_size"] = min(size, 8)
        response: Any = mlx_lm.batch_generate(teacher.model, teacher.tokenizer, ids, **options)
    else:
        options |= {"graph": graph, "num_draft_tokens": length if arm == "drafted" else 0}
        response = batch_generate(teacher.model, teacher.tokenizer, ids, **options)
    seconds = perf_counter() - start
    tokens = response.stats.generation_tokens
    return Run(max(seconds - response.stats.prompt_time, 0.0), seconds, tokens), response


def _figures(size: int, runs: dict[str, list[Run]], verdicts: list[str], response: BatchResponse) -> dict[str, Any]:
    """The figures of one size, each arm's those of its median pass."""
    middle = {arm: sorted(passes, key=lambda run: run.decode_seconds)[len(passes) // 2] for arm, passes in runs.items()}
    rate = {arm: run.tokens / run.decode_seconds for arm, run in middle.items()}
    whole = {arm: run.tokens / run.seconds for arm, run in middle.items()}
    counted = total(response.statistics)
    return {
        "rows": size,
        "tokens_per_second": rate,
        "tokens_per_second_with_prompts": whole,
        "decode_ratio": rate["drafted"] / rate["mlx_lm"],
        "wall_ratio": whole["drafted"] / whole["mlx_lm"],
        "over_undrafted": rate["drafted"] / rate["undrafted"],
        "undrafted_over_mlx_lm": rate["undrafted"] / rate["mlx_lm"],
        "tokens_per_forward": counted.tokens_per_forward,
        "acceptance_rate": counted.acceptance_rate,
        "draft_seconds": counted.draft_seconds,
        "forwards": response.stats.generation_steps,
        "identical": verdicts.count("identical"),
        "ties": verdicts.count("tie"),
        "failed": len(verdicts) - verdicts.count("identical") - verdicts.count("tie"),
        "alone": response.alone,
        "passes": {arm: [asdict(run) for run in passes] for arm, passes in runs.items()},
    }
