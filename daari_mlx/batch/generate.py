"""`batch_generate` with mlx-lm's names: a list of prompts in, their answers out, drafted."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import mlx.nn as nn
from mlx_lm.sample_utils import greedy_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx.batch.engine import STEP, BatchEngine
from daari_mlx.batch.request import Request
from daari_mlx.batch.response import BatchResponse, Collected
from daari_mlx.cost import machine
from daari_mlx.decode.choose import choose_drafter, graph_drafter, learning_drafter
from daari_mlx.decode.generate import new_cache
from daari_mlx.decode.options import DraftLength
from daari_mlx.decode.refusals import refuse_unknown
from daari_mlx.decode.stops import stop_list
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.forced import ForcedDrafter, Forcing
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar
from daari_mlx.ground.wired import wired
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.scopes import Learners, Together
from daari_mlx.learn.start import check_teacher
from daari_mlx.share.find import graph_of
from daari_mlx.teacher.batchable import why_alone
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.teacher.rewind import refuses_drafts
from daari_mlx.text.prompt import Prompt, encode_prompt

V = TypeVar("V")


def batch_generate(
    model: nn.Module,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    prompt_caches: Sequence[Any] | None = None,
    max_tokens: int | Sequence[int] = 128,
    verbose: bool = False,
    return_prompt_caches: bool = False,
    return_token_ids: bool = False,
    return_logprobs: bool = False,
    *,
    graph: Graph | str | Path | None = None,
    num_draft_tokens: DraftLength = "auto",
    sampler: Any = None,
    logits_processors: Any = None,
    stop: Any = None,
    seed: int | Sequence[int | None] | None = None,
    begun: Any = 0,
    completion_batch_size: int = 32,
    prefill_step_size: int = STEP,
    max_cache_bytes: int | None = None,
    learn: Learner | None = None,
    **unknown: Any,
) -> BatchResponse:
    """Answer several prompts at once: each as it is answered alone, several tokens a forward.

    Args:
        model, tokenizer: as ``mlx_lm.load`` gives them: the teacher.
        prompts: text or token ids, as for :func:`daari_mlx.stream_generate`.
        prompt_caches: what came before each prompt; they are copied, and left as they are.
        max_tokens: tokens of an answer at the most, one number for all or one a prompt; -1 for no limit.
        graph: a compiled graph, or the folder or Hub repository it lies in; None decodes plainly.
        num_draft_tokens: how many tokens a round drafts; ``"auto"`` lets the paths' probabilities and the cost of a
            forward over all rows decide; 0 drafts nothing.
        sampler, seed, stop: one for all prompts, or a list with one a prompt. A row with a seed draws what
            ``mx.random.seed(seed)`` lets it draw alone.
        logits_processors: a list of processors for each prompt, or one list for all, which then may keep no state (a
            grammar gives each row a state of its own).
        begun: one for all prompts, or one a prompt; see :func:`daari_mlx.stream_generate`.
        completion_batch_size: rows that share a forward at the most.
        prefill_step_size: prompt tokens that are read between two rounds.
        max_cache_bytes: what all rows' caches may take; None for no limit.
        learn: who learns from the answers and drafts them, see :func:`daari_mlx.learner_for`; None learns nothing.
        The others are mlx-lm's.

    Raises:
        DaariError: a graph of another teacher, an empty prompt, an option that is unknown or cannot be honoured.
    """
    refuse_unknown(unknown, [*inspect.signature(batch_generate).parameters][:-1])
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    engine, _ = make_engine(
        model,
        tokenizer,
        graph=None if graph is None else graph_of(graph),
        num_draft_tokens=num_draft_tokens,
        most_rows=completion_batch_size,
        prefill_step_size=prefill_step_size,
        most_bytes=max_cache_bytes,
        learners=None if learn is None else Together(learn),
    )
    count = len(prompts)
    samplers = each(sampler, count, "sampler")
    stops = each(stop, count, "stop") if _nested(stop) else [stop] * count
    processors = list(logits_processors) if _nested(logits_processors) else [logits_processors] * count
    limits, seeds = each(max_tokens, count, "max_tokens"), each(seed, count, "seed")
    begins = each(begun, count, "begun")
    caches = [None] * count if prompt_caches is None else each(list(prompt_caches), count, "prompt_caches")
    requests = [
        Request(
            encode_prompt(tokenizer, prompt),
            max_tokens=limits[k],
            sampler=None if samplers[k] is greedy_sampler else samplers[k],
            logits_processors=processors[k],
            stop=stop_list(stops[k]),
            seed=seeds[k],
            begun=begins[k],
            prompt_cache=caches[k],
            keep_cache=return_prompt_caches,
        )
        for k, prompt in enumerate(prompts)
    ]
    for request in requests:
        engine.add(request)
    collected = Collected(count, return_logprobs)
    start = time.perf_counter()
    with wired(model, engine.stream), bar(total=count, desc="answers", unit="answer", shown=verbose) as shown:
        told = [shown.unit() for _ in requests]
        while len(engine):
            for event in engine.step():
                collected.take(event)
                done, end = collected.tokens(event.uid), limits[event.uid]
                told[event.uid](*(1, 1) if event.ended else (done, end))
    return collected.response(tokenizer, requests, engine.counts, time.perf_counter() - start, return_token_ids)


def make_engine(
    model: nn.Module,
    tokenizer: Any,
    *,
    graph: Graph | None = None,
    num_draft_tokens: DraftLength = "auto",
    most_rows: int = 32,
    prefill_step_size: int = STEP,
    most_bytes: int | None = None,
    learners: Learners | None = None,
) -> tuple[BatchEngine, str | None]:
    """The engine for a teacher and a graph, and why it does not draft, or None.

    Args:
        learners: who learns from answers, each beginning with its own graph: there is then no other.

    Raises:
        DaariError: a graph of another teacher; numbers that cannot be.
    """
    for name, value in (("completion_batch_size", most_rows), ("prefill_step_size", prefill_step_size)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DaariError(f"{name} is {value!r}: give a whole number from 1 on.")
    statistics, known = Statistics(), None
    if learners is not None:
        if graph is not None:
            raise DaariError(
                "graph and learn are given, but a learner drafts from its own graph: give the graph to the learner."
            )
        check_teacher(learners.any, model, tokenizer)
        known = learning_drafter(learners.any, model, tokenizer, num_draft_tokens)
    first, tap = choose_drafter(model, tokenizer, new_cache(model), statistics, graph, known, num_draft_tokens)

    def force(grammar: Forcing, own: Drafter | None) -> Drafter:
        length = None if num_draft_tokens == "auto" else num_draft_tokens
        if length is None and engine.cost is None:  # nobody waits for a timing that no row needs
            engine.price(machine.batch_cost_of(model, look=False))
        cost = None if engine.cost is None else engine.cost.cost
        return ForcedDrafter(grammar, own, num_draft_tokens=length, cost=cost)

    engine = BatchEngine(
        model,
        tokenizer,
        make_drafter=None
        if first is None or graph is None
        else lambda: graph_drafter(graph, model, tokenizer, num_draft_tokens),
        tap=tap,
        cost=machine.batch_cost_of(model) if first is not None and num_draft_tokens == "auto" else None,
        most_rows=most_rows,
        most_bytes=most_bytes,
        prefill_step_size=prefill_step_size,
        why_alone=why_alone(model),
        force=None if num_draft_tokens == 0 or refuses_blocks(model) or refuses_drafts(new_cache(model)) else force,
        off=statistics.drafting_off,
        learners=None if first is None else learners,
        make_learning=lambda learner: learning_drafter(learner, model, tokenizer, num_draft_tokens),
    )
    return engine, statistics.drafting_off


def each(value: V | Sequence[V], count: int, name: str) -> list[Any]:
    """One value for each prompt, given as one for all or as a list.

    Raises:
        DaariError: the list is of another length.
    """
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise DaariError(f"{name} has {len(value)} entries for {count} prompts: give one for all, or one a prompt.")
    return list(value)


def _nested(value: Any) -> bool:
    """Whether a list of lists was given: one a prompt."""
    return isinstance(value, (list, tuple)) and any(item is None or isinstance(item, (list, tuple)) for item in value)
