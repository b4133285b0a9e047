"""Questions → answers by a batch engine that always has enough rows waiting; they come as they are ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.request import Event, Request
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.wired import wired
from daari_mlx.job.failing import why
from daari_mlx.job.order import work_order

T = TypeVar("T")
WINDOW = 256  # rows that are put in order at once, at the least


@dataclass(slots=True)
class Answer:
    """What came of one row.

    Attributes:
        text: the answer; None where there is none.
        finish_reason: ``"stop"`` or ``"length"``.
        prompt_tokens: of the rendered prompt.
        tokens: ids of the answer, its end token included.
        error: why there is no answer.
        statistics: what drafting did.
        alone: why the row did not share forwards, or None.
    """

    text: str | None = None
    finish_reason: str | None = None
    prompt_tokens: int = 0
    tokens: list[int] = field(default_factory=list)
    error: str | None = None
    statistics: Statistics = field(default_factory=Statistics)
    alone: str | None = None


@dataclass(slots=True)
class _Row(Generic[T]):
    tag: T
    answer: Answer
    pieces: list[str] = field(default_factory=list)


def answer_all(
    engine: BatchEngine, rows: Iterator[tuple[T, Request | Exception]], most_rows: int
) -> Iterator[tuple[T, Answer]]:
    """Answer all rows.

    Args:
        engine: nothing else uses it meanwhile.
        rows: what is to be handed back with the answer, and the request, or why there is none. They are taken as they
            are needed, a window at a time.
        most_rows: how many the engine answers at once.
    """
    window, under_way = max(WINDOW, 4 * most_rows), dict[int, _Row[T]]()
    with wired(engine.model, engine.stream):
        while True:
            while len(engine) < 2 * most_rows and (taken := list(islice(rows, window))):
                good = [(tag, made) for tag, made in taken if isinstance(made, Request)]
                yield from ((tag, Answer(error=why(made))) for tag, made in taken if isinstance(made, Exception))
                for place in work_order([request.prompt for _, request in good]):
                    tag, request = good[place]
                    try:
                        under_way[engine.add(request)] = _Row(tag, Answer(prompt_tokens=len(request.prompt)))
                    except Exception as error:
                        yield tag, Answer(error=why(error))
            if not len(engine):
                return
            for event in engine.step():
                row = under_way[event.uid]
                _take(row, event)
                if event.ended:
                    del under_way[event.uid]
                    yield row.tag, row.answer


def _take(row: _Row[Any], event: Event) -> None:
    row.pieces += [response.text for response in event.responses]
    row.answer.alone = event.alone
    row.answer.tokens += [response.token for response in event.responses]
    if event.error is not None:
        row.answer = Answer(prompt_tokens=row.answer.prompt_tokens, error=why(event.error))
    elif event.ended:
        row.answer.text = "".join(row.pieces)
        row.answer.finish_reason = event.responses[-1].finish_reason
        row.answer.statistics = event.responses[-1].statistics
