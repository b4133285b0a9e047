"""Records of rounds → lines for a terminal: one small table a round, no wider than the screen."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console
from rich.text import Text

from daari_mlx.ground.legible import fit, fold, isolated, padded, visible, width
from daari_mlx.show.annotate import ACCEPTED, FORBIDDEN, REJECTED, UNREAD, UNUSED
from daari_mlx.show.shades import COLOURS, OTHER

GAP = "  "
NODE, CHANCE, SOURCE = 6, 5, 8  # columns
TOKEN = (8, 40)  # fewest and most columns of a token
AFTER = 16  # the most columns of the token before a draft
LABEL = 10  # columns of what stands before a line about the whole answer
PROMPT_LINES = 3  # of the prompt's end that are shown
# Of the 256 colours, middle ones that stand out from a dark and from a light ground alike.
GOOD, BAD, QUIET = "color(28)", "color(160)", "color(244)"
VERDICTS = {
    ACCEPTED: ("✓", GOOD),
    REJECTED: ("✗ wanted ", BAD),
    UNREAD: ("– not read", QUIET),
    UNUSED: ("– behind the end", QUIET),
    FORBIDDEN: ("✗ not allowed by the grammar", BAD),
}
ENDS = {"stop": "stop: the answer is complete", "length": "length: --max-tokens was reached"}

Cell = tuple[str, str]  # text and style


def console_for(*, plain: bool = False) -> Console:
    """The console of stdout: rich finds its width, and whether it has colours; a pipe and NO_COLOR have none.

    Args:
        plain: no colours anyhow.
    """
    plain = plain or bool(os.environ.get("NO_COLOR"))
    return Console(color_system=None if plain else "auto", highlight=False, markup=False, emoji=False)


class Screen:
    """Prints one answer's rounds.

    Args:
        console: where to.
        nodes: whether a graph drafts: only its tokens stand on nodes.
    """

    def __init__(self, console: Console, *, nodes: bool) -> None:
        self._console, self._nodes = console, nodes
        fixed = len(GAP) * (5 + nodes) + nodes * NODE + 2 * CHANCE + SOURCE
        self._token = min(max((console.width - fixed) // 2, TOKEN[0]), TOKEN[1])
        self._verdict = max(console.width - fixed - self._token, len(VERDICTS[REJECTED][0]) + 1)
        self._headed = False  # whether the columns were named
        self._anchored = False  # whether there was a round
        self._walked: int | None = None  # the node that the walk had come to

    def prompt(self, source: str, count: int, text: str) -> None:
        """Say what is answered.

        Args:
            source: where the prompt comes from, may be empty.
            count: its tokens.
            text: its end, as long as one likes.
        """
        self._total("prompt", ", ".join(filter(None, (source, _counted(count, "token")))))
        lines = list(fold(visible(text, " "), self._console.width - len(GAP)))
        for row, line in enumerate(lines[-PROMPT_LINES:]):
            cut = row == 0 and len(lines) > PROMPT_LINES
            self._line((GAP + isolated(("…" if cut else "") + line[cut:]), QUIET))

    def round(self, record: dict[str, Any]) -> None:
        """Print a round, as :func:`daari_mlx.show.annotate.round_record` tells it."""
        self._console.print()
        after = isolated(fit(visible(record["after"]["text"]), AFTER))
        head, place = f"round {record['round']}", self._place(record)
        wide = width(f"{head} · after {after} · {place}") > self._console.width
        self._line((head, "bold"), (f" · after {after}", QUIET), (f" · {place}" if place and not wide else "", ""))
        if wide and place:
            self._line((GAP + place, ""))
        if record["draft"]:
            self._draft(record)
        self._said(record)
        self._anchored, bonus = True, record["bonus"]
        self._walked = None if bonus is None else bonus.get("node")

    def _place(self, record: dict[str, Any]) -> str:
        """On which node the teacher's true state lies, and where the walk had come to."""
        anchor = record.get("anchor")
        if anchor is None:
            return ""
        if not self._anchored:
            return f"anchored on node {anchor}"
        if self._walked == anchor:
            return f"re-anchored on node {anchor}, where the walk stood"
        stood = "was lost" if self._walked is None else f"stood on {self._walked}"
        return f"re-anchored on node {anchor} (the walk {stood})"

    def _draft(self, record: dict[str, Any]) -> None:
        if not self._headed:
            self._headed = True
            self._row("node", "token", "p", "path", ("source", QUIET), ("verdict", QUIET), style=QUIET)
        for token in record["draft"]:
            sign, style = VERDICTS[token["verdict"]]
            if "wanted" in token:
                sign += visible(token["wanted"]["text"])
            chances = (_chance(token.get("probability")), _chance(token.get("path_probability")))
            source = (visible(token["source"]), _colour(token["source"]))
            faint = "" if token["verdict"] == ACCEPTED else QUIET
            self._row(_node(token), visible(token["text"]), *chances, source, (sign, style), style=faint)
        if record["bonus"] is not None:
            bonus = record["bonus"]
            self._row(_node(bonus), visible(bonus["text"]), "", "", ("teacher", ""), ("+ bonus", GOOD))

    def _row(
        self, node: str, token: str, chance: str, path: str, source: Cell, verdict: Cell, *, style: str = ""
    ) -> None:
        cells: list[Cell] = [(padded(node, NODE, right=True), style)] if self._nodes else []
        cells += [
            (padded(token, self._token), style),
            (padded(chance, CHANCE, right=True), style),
            (padded(path, CHANCE, right=True), style),
            (padded(source[0], SOURCE), source[1]),
            (padded(verdict[0], self._verdict), verdict[1]),
        ]
        self._line(*(part for cell in cells for part in ((GAP, ""), cell)))

    def _said(self, record: dict[str, Any]) -> None:
        """How many tokens came of a round, how many there are by now, and the round's text."""
        count = f"{GAP}+{_counted(record['emitted'], 'token')}, {record['tokens']:,} in "
        count += f"{_counted(record['round'], 'forward')}{'' if record['draft'] else ', nothing drafted'}: "
        lines = list(fold(visible(record["text"], " "), max(self._console.width - len(count), 20)))
        self._line((count, QUIET), (isolated(lines[0] if lines else ""), "bold"))
        for line in lines[1:]:
            self._line((" " * len(count), ""), (isolated(line), "bold"))

    def summary(self, record: dict[str, Any]) -> None:
        """Print the last lines, as :func:`daari_mlx.show.annotate.summary_record` tells them."""
        self._console.print()
        total = f"{_counted(record['tokens'], 'token')} in {_counted(record['calls'], 'forward')}: "
        self._total("total", total + f"{record['tokens_per_call']:.2f} tokens per forward (plain: 1.00)")
        if record["drafted"]:
            kept = f"{record['accepted']:,} of {_counted(record['drafted'], 'draft token')} accepted"
            self._total("drafted", f"{kept}: {record['acceptance_rate']:.0%}")
            cells: list[Cell] = []
            for name, count in record["by_source"].items():
                text = f"{visible(name)} {count['accepted']:,} of {count['drafted']:,}"
                cells += [(", " if cells else "", ""), (text, _colour(name))]
            self._line((f"{'sources':<{LABEL}}", "bold"), *cells)
        if record["drafting_off"] is not None:
            self._total("drafting", f"off: {record['drafting_off']}")
        self._total("finish", ENDS.get(record["finish_reason"], record["finish_reason"]))

    def _total(self, label: str, text: str) -> None:
        for line in fold(visible(text, " "), max(self._console.width - LABEL, TOKEN[1])):
            self._line((f"{label:<{LABEL}}", "bold"), (line, ""))
            label = ""

    def _line(self, *cells: Cell) -> None:
        line = Text.assemble(*cells)
        line.rstrip()
        self._console.print(line, soft_wrap=True)
        self._console.file.flush()


def _colour(source: str) -> str:
    return f"color({COLOURS.get(source, OTHER)})"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _node(token: dict[str, Any]) -> str:
    node = token.get("node")
    return "–" if node is None else str(node)


def _chance(probability: float | None) -> str:
    return "" if probability is None else f"{probability:.3f}"
