"""`map_rows`: rows in, the same rows with answers out, as a generator; for notebooks and data sets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import mlx.nn as nn
from mlx_lm.tokenizer_utils import TokenizerWrapper

from daari_mlx.batch.request import Request
from daari_mlx.decode.options import DraftLength, Length, Sampling
from daari_mlx.decode.schema import Whitespace
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.job.asks import Asker
from daari_mlx.job.engine import engine_for
from daari_mlx.job.failing import why
from daari_mlx.job.files import Line
from daari_mlx.job.journal import record_of
from daari_mlx.job.plan import Apart
from daari_mlx.job.requests import Manner, Requests, row_seed
from daari_mlx.job.shape import RowShape
from daari_mlx.job.work import answer_all
from daari_mlx.learn.learner import Learner
from daari_mlx.share.find import graph_of
from daari_mlx.teacher.fingerprint import context_length
from daari_mlx.text.rows import Features

Tag = tuple[int, Line, bytes]


def map_rows(
    model: nn.Module,
    tokenizer: Any,
    rows: Iterable[Mapping[str, Any]],
    *,
    graph: Graph | str | Path | None = None,
    learn: Learner | None = None,
    template: str | None = None,
    system_prompt: str | None = None,
    max_tokens: int = 256,
    stop: str | list[str] | None = None,
    json_schema: dict[str, Any] | None = None,
    json_whitespace: Whitespace = "compact",
    logits_processors: list[Any] | None = None,
    chat_template_config: dict[str, Any] | None = None,
    num_draft_tokens: DraftLength = "auto",
    concurrency: int | Literal["auto"] = "auto",
    ordered: bool = True,
    prefix: str = "",
    compare: bool = False,
    return_token_ids: bool = False,
    prompt_feature: str = "prompt",
    completion_feature: str = "completion",
    chat_feature: str = "messages",
    text_feature: str = "text",
    **sampling: Any,
) -> Iterator[dict[str, Any]]:
    """Answer rows as they come, several by one forward, and give each back with its answer.

    Rows are taken a few hundred at a time, so they may come from a generator or a data set that streams; the answers
    are those that each row gets alone. ``daari-mlx map`` does the same with files, and goes on where it stopped.

    Args:
        model, tokenizer: as ``mlx_lm.load`` gives them: the teacher.
        rows: with ``messages`` or ``prompt``, or with whatever fields ``template`` names.
        graph: a compiled graph, or the folder or Hub repository it lies in; None decodes plainly.
        learn: who learns from the answers and drafts them, in place of a graph; see :func:`daari_mlx.learner_for`.
        template: what to ask of a row, with its fields in braces: ``"Classify: {text}"``.
        system_prompt: a message before all others.
        max_tokens: of an answer at the most; -1 for no limit.
        stop: texts that end an answer.
        json_schema: what answers are held to; ``parsed`` is then among a row's fields.
        logits_processors: further processors of mlx-lm's protocol, for every row; they may keep no state.
        num_draft_tokens: as for :func:`daari_mlx.batch_generate`.
        concurrency: rows that share a forward; ``"auto"`` takes what this machine's speed and memory let pay.
        ordered: give rows back in their order; False gives each as it is answered.
        prefix: stands before the names of the fields that are added.
        compare: say in ``same`` whether a row's own answer is ours; None where it brings none.
        return_token_ids: add ``token_ids``, the answer's, its end token included.
        prompt_feature, completion_feature, chat_feature, text_feature: which fields are what.
        sampling: fields of :class:`daari_mlx.decode.options.Sampling`: ``temp``, ``top_p``, ``seed`` and so on. Each
            row draws by a seed of its own, made of ``seed`` and of what it asks.

    Yields:
        The row's own fields and ``answer``, ``finish_reason``, ``usage`` and ``error``; a row that cannot be answered
        has an ``error``, and the others go on. What is no mapping comes back as ``line``, its ``repr``.

    Raises:
        DaariError: a graph of another teacher, an option that is unknown or cannot be honoured.
    """
    if unknown := [name for name in sampling if name not in Sampling.__dataclass_fields__]:
        raise DaariError(f"{unknown[0]} is no option here: leave it out.")
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    length = Length(max_tokens, [stop] if isinstance(stop, str) else stop)
    manner = Manner(length, Sampling(**sampling), json_schema, json_whitespace, chat_template_config, logits_processors)
    requests = Requests(tokenizer, manner, context_length(model))
    features = Features(prompt_feature, completion_feature, chat_feature, text_feature)
    shape = RowShape(
        Asker(template, system_prompt, features),
        prefix=prefix,
        parsed=json_schema is not None,
        compare=compare,
        thinks_until=tokenizer.think_end if tokenizer.has_thinking else None,
    )
    if graph is not None and learn is not None:
        raise DaariError(
            "graph and learn are given, but a learner drafts from its own graph: give the graph to the learner."
        )
    found = None if graph is None else graph_of(graph)
    engine, most_rows = engine_for(model, tokenizer, found, num_draft_tokens, concurrency, learner=learn)

    def answered() -> Iterator[dict[str, Any]]:
        early: dict[int, dict[str, Any]] = {}
        turn = 0
        for (number, line, key), answer in answer_all(engine, _requests(rows, shape, requests), most_rows):
            made = shape.written(line, key, record_of(key, answer))
            early[number] = {**made, prefix + "token_ids": answer.tokens} if return_token_ids else made
            if not ordered:
                yield early.pop(number)
            while turn in early:
                yield early.pop(turn)
                turn += 1

    return answered()


def _line(number: int, row: Any) -> Line:
    """A row as others come from a file; what is no row is told as a bad line is."""
    place = f"row {number}"
    if not hasattr(row, "keys"):  # rows of databases and tables have them, and are no Mapping
        return Line(place, None, repr(row), f"is {type(row).__name__}, not a mapping of names to values")
    try:
        return Line(place, dict(row))
    except Exception as error:
        return Line(place, None, object.__repr__(row), f"cannot be read: {why(error)}")


def _requests(
    rows: Iterable[Mapping[str, Any]], shape: RowShape, requests: Requests
) -> Iterator[tuple[Tag, Request | Exception]]:
    seed, apart = requests.manner.sampling.seed or 0, Apart()
    for number, row in enumerate(rows):
        line, key = _line(number, row), b""
        made: Request | Exception
        try:
            ask = shape.ask(line)
            key = apart(ask.key) if requests.draws(ask) else ask.key
            made = requests.request(ask, row_seed(seed, key))
        except Exception as error:
            made = error
        yield (number, line, key), made
