"""All rows, looked at before any work: which are good, ask the same, or are asked (again), and how long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar
from daari_mlx.job.asks import KEY, Ask
from daari_mlx.job.failing import why
from daari_mlx.job.files import Line
from daari_mlx.job.journal import Journal, Place
from daari_mlx.text.data import listed
from daari_mlx.text.prefixes import common_length

NONE = -1


@dataclass
class Plan:
    """What is to be done; all arrays have one item a row, n in all.

    Attributes:
        keys: ``(n, KEY)`` uint8.
        first: the first row that asks the same; a row's own number where it is that one. ``NONE`` for a bad row.
        bad: what is wrong with each bad row.
        columns: the fields of the first row.
        prompt_tokens: of all good rows together.
        shared_tokens: with which all their prompts begin.
        file, offset: the place of the answer in the journal, of first rows; ``NONE`` where there is none.
    """

    keys: NDArray[np.uint8]
    first: NDArray[np.int64]
    bad: dict[int, str]
    columns: list[str]
    prompt_tokens: int
    shared_tokens: int
    file: NDArray[np.int64] = field(init=False)
    offset: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        """No answers yet."""
        self.file, self.offset = np.full(len(self), NONE, np.int64), np.full(len(self), NONE, np.int64)

    def __len__(self) -> int:
        return len(self.first)

    def key(self, row: int) -> bytes:
        """The key of a row."""
        return self.keys[row].tobytes()

    def answered(self, row: int, place: Place) -> None:
        """Note where the answer of a first row lies."""
        self.file[row], self.offset[row] = place

    def place(self, row: int) -> Place | None:
        """Where the answer of a row lies, if there is one."""
        first = self.first[row]
        return None if self.file[first] == NONE else Place(int(self.file[first]), int(self.offset[first]))

    def pending(self) -> NDArray[np.int64]:
        """The first rows without an answer, in their order."""
        own = self.first == np.arange(len(self))
        return np.flatnonzero(own & (self.file == NONE))

    def take_in(self, journal: Journal, *, retry_errors: bool) -> None:
        """Note the answers that are there; an answer counts before an error, else the newest.

        Args:
            retry_errors: errors are no answers.
        """
        rows = {self.key(row): row for row in self.pending().tolist()}
        failed = set[int]()
        for key, place, error in journal.entries():
            row = rows.get(key)
            if row is None or (error and (retry_errors or (self.file[row] != NONE and row not in failed))):
                continue
            failed.add(row) if error else failed.discard(row)
            self.answered(row, place)


def look_at(
    lines: Iterator[Line],
    asked: Callable[[Line], Ask],
    *,
    draws: Callable[[Ask], bool],
    prompt: Callable[[Ask], list[int]],
    name: str,
    limit: int | None = None,
    shown: bool = True,
) -> Plan:
    """Look at every row.

    Args:
        asked: a row's question; what it raises makes the row a bad one.
        draws: whether its answer is drawn at random: rows that ask the same then get an answer each.
        prompt: sees that a question can be asked, and gives the token ids of its prompt; raises likewise.
        name: of the data, for a message.
        limit: take so many rows.
        shown: whether to draw a bar.

    Raises:
        DaariError: there is no row.
    """
    keys, bad, columns, tokens = bytearray(), dict[int, str](), list[str](), 0
    drawn = bytearray()
    shared: list[int] | None = None
    with bar(desc="looking at every row", unit="row", shown=shown) as done:
        for row, line in enumerate(islice(lines, limit)):
            done.update(1)
            columns = columns or list(line.fields or {})
            try:
                ask = asked(line)
                ids = prompt(ask)
                tokens += len(ids)
                shared = ids if shared is None else shared[: common_length(shared, ids)]
                key, free = ask.key, draws(ask)
            except Exception as error:
                bad[row], key, free = f"{line.place}: {why(error)}", bytes(KEY), False
            keys += key
            drawn.append(free)
    if not drawn:
        raise DaariError(f"The data, {name}, is empty: it needs a row at least.")
    table = np.frombuffer(keys, np.uint8).reshape(-1, KEY).copy()
    _tell_apart(table, np.frombuffer(drawn, bool))
    _, first, which = np.unique(table.view(f"V{KEY}").ravel(), return_index=True, return_inverse=True)
    firsts = first[which].astype(np.int64)
    firsts[list(bad)] = NONE
    return Plan(table, firsts, bad, columns, tokens, len(shared or []))


def _tell_apart(keys: NDArray[np.uint8], drawn: NDArray[np.bool_]) -> None:
    """Give rows that ask the same, and whose answers are drawn, a key each."""
    apart = Apart()
    for row in np.flatnonzero(drawn).tolist():
        keys[row] = np.frombuffer(apart(keys[row].tobytes()), np.uint8)


class Apart:
    """Keys of rows that ask the same, told apart by how many came before."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def __call__(self, key: bytes) -> bytes:
        """The key itself for the first, another for each later one."""
        before = self._seen.get(key, 0)
        self._seen[key] = before + 1
        return blake2b(key, digest_size=KEY, salt=before.to_bytes(8, "little")).digest() if before else key


def refuse_bad(plan: Plan) -> None:
    """Raise DaariError with the first bad rows, if there are any."""
    if plan.bad:
        raise DaariError(
            f"The data has {listed(list(plan.bad.values()))}\nMend them, or give --keep-bad-rows: each is then written "
            "out with what is wrong with it."
        )
