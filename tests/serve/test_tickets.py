"""News of an answer: at once where somebody reads along, together where the answer is sent whole."""

from __future__ import annotations

import asyncio

from daari_mlx.batch.request import Request
from daari_mlx.serve.tickets import GATHERED, Figures, News, Ticket


def ticket(*, gathered: bool) -> Ticket:
    made = Ticket(Request([1, 2]), asyncio.Queue(), loop=asyncio.new_event_loop())
    made.loop.close()
    made.gathered, made.told = gathered, 0.0
    return made


def news(at: float, finish: str | None = None, error: Exception | None = None) -> News:
    return News(0, [], finish, Figures(), at, error)


def test_a_stream_is_told_everything_at_once() -> None:
    one = ticket(gathered=False)
    rounds = [news(0.01), news(0.02), news(0.03, "stop")]
    assert [one.due(round) for round in rounds] == [[round] for round in rounds]


def test_a_whole_answer_is_told_together_and_now_and_then() -> None:
    one = ticket(gathered=True)
    first, second, third = news(GATHERED / 2), news(GATHERED * 1.5), news(GATHERED * 1.6)
    last = news(GATHERED * 1.7, "length")
    assert [one.due(round) for round in (first, second, third, last)] == [[], [first, second], [], [third, last]]


def test_what_was_kept_is_told_before_an_error() -> None:
    one = ticket(gathered=True)
    first, broken = news(0.01), news(0.02, error=ValueError("no"))
    assert one.due(first) == []
    assert one.due(broken) == [first, broken]


def test_who_begins_to_wait_for_the_whole_loses_nothing() -> None:
    one = ticket(gathered=False)
    first, second, last = news(0.01), news(0.02), news(0.03, "stop")
    assert one.due(first) == [first]
    one.gathered = True
    assert one.due(second) == []
    assert one.due(last) == [second, last]
