"""`generate` and `stream_generate` with mlx-lm's names: text from tokens, and the response that extends mlx-lm's."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import greedy_sampler
from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx.cost import machine
from daari_mlx.decode.begun import Begun, processors_for
from daari_mlx.decode.choose import choose_drafter, learning_drafter
from daari_mlx.decode.limits import Options
from daari_mlx.decode.loop import generate_step
from daari_mlx.decode.options import CacheOptions, DraftLength
from daari_mlx.decode.refusals import (
    check_kv_quantisation,
    check_numbers,
    refuse_two_drafters,
    refuse_two_sizes,
    refuse_unknown,
)
from daari_mlx.decode.responses import GenerationResponse, Prefill, Responder
from daari_mlx.decode.stops import stop_list
from daari_mlx.draft.drafter import Drafter
from daari_mlx.draft.forced import grammar_among
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.wired import wired
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.start import check_teacher
from daari_mlx.share.find import graph_of
from daari_mlx.teacher.fingerprint import context_length
from daari_mlx.teacher.kept import unchanged
from daari_mlx.teacher.quirks import blocks_until
from daari_mlx.teacher.rewind import cached_tokens
from daari_mlx.teacher.tap import vocabulary_of
from daari_mlx.text.prompt import Prompt, encode_prompt, token_ids


def stream_generate(
    model: nn.Module,
    tokenizer: Any,
    prompt: Prompt,
    max_tokens: int = 256,
    *,
    graph: Graph | str | Path | None = None,
    drafter: Drafter | None = None,
    num_draft_tokens: DraftLength = "auto",
    prompt_cache: list[Any] | None = None,
    earlier: Prompt | None = None,
    max_kv_size: int | None = None,
    sampler: Any = None,
    logits_processors: list[Any] | None = None,
    prefill_step_size: int = 2048,
    kv_bits: int | None = None,
    kv_group_size: int = 64,
    quantized_kv_start: int = 5000,
    prompt_progress_callback: Any = None,
    stream: Any = None,
    stop: str | list[str] | None = None,
    begun: Begun = 0,
    learn: Learner | None = None,
    **unknown: Any,
) -> Generator[GenerationResponse, None, None]:
    """Stream an answer: the same tokens as ``mlx_lm.stream_generate``, several a teacher forward.

    Args:
        model, tokenizer: as ``mlx_lm.load`` gives them: the teacher.
        prompt: text, or token ids: a list, or an array of integers (NumPy's, MLX's) of one dimension.
        max_tokens: tokens at the most, exactly kept; -1 for no limit.
        graph: a compiled graph, or the folder or Hub repository it lies in; None decodes plainly.
        drafter: any other drafter, in place of a graph; it is shown the states of its ``layer``: none if that is None,
            the final ones if it has no ``layer``.
        num_draft_tokens: how many tokens a round (a draft and the forward that checks it) drafts; ``"auto"`` lets the
            draft's probabilities and T(m), the time of a forward over m tokens here, decide; 0 drafts nothing.
        prompt_cache: mlx-lm's prompt cache, changed in place. Afterwards, also after ``close()`` or an exception, it
            holds the prompt and all emitted tokens, as mlx-lm leaves it, and as many random numbers are used. So a chat
            goes on by feeding only its new turn.
        earlier: the tokens that ``prompt_cache`` holds, where they are known, for drafters that copy from the text.
        stop: texts that end the answer where it first holds one of them. The stop itself is not part of the text; the
            token that completes it is the last one. Text that may begin a stop is held back until that is decided.
        begun: how much of the prompt's end is already the beginning of the answer: a number of tokens, or the text. A
            grammar goes on behind it. By default nothing is: the answer begins with its first new token.
        learn: who learns from the answer and drafts it, see :func:`daari_mlx.learner_for`; None learns nothing.
        The others are mlx-lm's.

    Yields:
        One :class:`GenerationResponse` a token, as mlx-lm does.

    Raises:
        DaariError: a graph of another teacher, an empty prompt, an option that is unknown or cannot be honoured.
    """
    refuse_unknown(unknown, [*inspect.signature(stream_generate).parameters][:-1])
    caching = CacheOptions(max_kv_size, prefill_step_size, kv_bits, kv_group_size, quantized_kv_start)
    check_numbers(max_tokens=max_tokens, **vars(caching))
    stops = stop_list(stop)
    refuse_two_sizes(prompt_cache, max_kv_size)
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    refuse_two_drafters(graph, drafter)
    if learn is not None:
        if graph is not None:
            raise DaariError(
                "graph and learn are given, but a learner drafts from its own graph: give the graph to the learner."
            )
        check_teacher(learn, model, tokenizer)
        drafter = learning_drafter(learn, model, tokenizer, num_draft_tokens) if drafter is None else drafter
    known = None if graph is None else graph_of(graph)
    statistics = Statistics()
    prefill = Prefill(prompt_progress_callback)
    cache = prompt_cache if prompt_cache is not None else new_cache(model, max_kv_size)
    ids, earlier = encode_prompt(tokenizer, prompt), None if earlier is None else token_ids(earlier)
    processors = processors_for(logits_processors, ids, earlier, begun)
    grammar = grammar_among(processors)
    with unchanged(model):
        check_kv_quantisation(model, cache, kv_bits, kv_group_size)
        chosen, tap = choose_drafter(
            model, tokenizer, cache, statistics, known, drafter, num_draft_tokens, grammar, len(earlier or ())
        )
        vocabulary = 0 if chosen is None else vocabulary_of(model)
        cost = machine.provisional(model)
        limit = blocks_until(model)
    options = Options(
        max_tokens=max_tokens,
        sampler=None if sampler is greedy_sampler else sampler,
        logits_processors=processors,
        caching=caching,
        prompt_progress_callback=prefill,
        context_length=context_length(model),
        blocks_until=limit,
        stream=stream,
    )
    if chosen is not None:
        statistics.drafting_off = options.ends_drafting(cached_tokens(cache) + len(ids) - 1)
        chosen = chosen if statistics.drafting_off is None else None
    steps = generate_step(
        ids,
        model,
        cache,
        options=options,
        drafter=chosen,
        tap=tap,
        statistics=statistics,
        earlier=earlier,
        whole=not isinstance(cache, OwnCache),
        vocabulary=vocabulary,
        learner=learn,
        told=None if cost is None else cost.learn,
    )
    responder = Responder(tokenizer, len(ids), max_tokens, statistics, stops, prefill)
    with wired(model, options.run_stream()):
        try:
            for step in steps:
                made = responder.respond(step)
                if made.finish_reason is not None:
                    steps.close()  # the cache is exact before the last response is out
                yield made
        finally:
            steps.close()
            if cost is not None and cost.news >= machine.NEWS:
                machine.keep_rounds(model)


def generate(model: nn.Module, tokenizer: Any, prompt: Prompt, verbose: bool = False, **kwargs: Any) -> str:
    """The whole answer as text; ``kwargs`` are those of :func:`stream_generate`.

    Args:
        verbose: print the text as it comes and the figures at the end, as mlx-lm does.
    """
    text, response = "", None
    for response in stream_generate(model, tokenizer, prompt, **kwargs):
        text += response.text
        if verbose:
            print(response.text, end="", flush=True)
    if verbose and response is not None:
        print(
            f"\n{'=' * 10}\nPrompt: {response.prompt_tokens} tokens, {response.prompt_tps:.3f} tokens-per-sec\n"
            f"Generation: {response.generation_tokens} tokens, {response.generation_tps:.3f} tokens-per-sec\n"
            f"Drafting: {response.tokens_per_forward:.2f} tokens per forward, {response.acceptance_rate:.0%} accepted\n"
            f"Peak memory: {response.peak_memory:.3f} GB"
        )
    return text


class OwnCache(list[Any]):
    """A prompt cache that nobody else sees: after an answer it may lack the newest token, which saves a forward."""


def new_cache(model: nn.Module, max_kv_size: int | None = None) -> OwnCache:
    """An empty prompt cache of our own.

    Raises:
        DaariError: ``max_kv_size`` is given and the model makes its own kind of cache, which would drop it silently.
    """
    if max_kv_size is not None and hasattr(model, "make_cache"):
        raise DaariError(
            f"max_kv_size is {max_kv_size}, but {type(model).__module__.rsplit('.', 1)[-1]} makes its own cache, which "
            "has no such limit: leave it out."
        )
    return OwnCache(make_prompt_cache(model, max_kv_size=max_kv_size))
