"""The screen of annotate, and the command: readable at every width, plain in a pipe, JSON for programs."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from graphs import Compiled, write_rows
from rich.console import Console
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.ground.legible import END_ISOLATE, ISOLATE, width
from daari_mlx.show.annotate import summary_record
from daari_mlx.show.annotate_lines import Screen, console_for

ODD = [
    "\n\t",
    "漢字",
    "😀",
    "שלום",
    "\x1b[31m",
    "\u202e",
    "e\u0301",
    "\u0301",
    "x" * 90,
    "漢" * 50,
    "ಕನ್ನಡ",
    " ",
    "\\xe2",
]


def token(text: str, verdict: str, chance: float = 0.75, source: str = "path", **more: Any) -> dict[str, Any]:
    shown = {"token": 7, "text": text, "probability": chance, "path_probability": chance / 2}
    return {**shown, "source": source, "verdict": verdict, "node": 12, **more}


def round_of(number: int, draft: list[dict[str, Any]], bonus: str | None, **more: Any) -> dict[str, Any]:
    own = None if bonus is None else {"token": 8, "text": bonus, "node": 31}
    kept = [t["text"] for t in draft if t["verdict"] == "accepted"] + ([] if bonus is None else [bonus])
    about = {"kind": "round", "round": number, "after": {"token": 9, "text": " is"}, "anchor": 40, "emitted": len(kept)}
    return {**about, "tokens": 10 + number, "draft": draft, "bonus": own, "text": "".join(kept), **more}


RECORDS: list[dict[str, Any]] = [
    round_of(
        1,
        [
            token(" a", "accepted"),
            token("\n", "rejected", 0.5, "copy", wanted={"token": 8, "text": " b"}),
            token("}", "unread", 0.9987, node=None),
        ],
        " b",
    ),
    round_of(2, [], "x", anchor=None),
    round_of(3, [token("y", "accepted", source="edge"), token("z", "unused", source="edge")], None, anchor=31),
]
ANSWER = {
    "tokens": 4, "calls": 3, "tokens_per_call": 4 / 3, "drafted": 5, "accepted": 2, "acceptance_rate": 0.4,
    "finish_reason": "stop", "drafting_off": None,
}  # fmt: skip
SCREEN = """\
prompt    test.jsonl:1, 12 tokens
  the question:␊

round 1 · after ·is · anchored on node 40
    node  token                       p   path  source    verdict
      12  ·a                      0.750  0.375  path      ✓
      12  ␊                       0.500  0.250  copy      ✗ wanted ·b
       –  }                       0.999  0.499  path      – not read
      31  ·b                                    teacher   + bonus
  +2 tokens, 11 in 1 forward:  a b

round 2 · after ·is
  +1 token, 12 in 2 forwards, nothing drafted: x

round 3 · after ·is · re-anchored on node 31, where the walk stood
      12  y                       0.750  0.375  edge      ✓
      12  z                       0.750  0.375  edge      – behind the end
  +1 token, 13 in 3 forwards: y

total     4 tokens in 3 forwards: 1.33 tokens per forward (plain: 1.00)
drafted   2 of 5 draft tokens accepted: 40%
sources   path 1 of 2, copy 0 of 1, edge 1 of 2
finish    stop: the answer is complete
"""


def shown(
    records: list[dict[str, Any]], columns: int, *, nodes: bool = True, prompt: str = "the question:\n", **options: Any
) -> str:
    out = io.StringIO()
    screen = Screen(Console(file=out, width=columns, highlight=False, markup=False, **options), nodes=nodes)
    screen.prompt("test.jsonl:1", 12, prompt)
    for record in records:
        (screen.round if record["kind"] == "round" else screen.summary)(record)
    return out.getvalue()


def test_the_screen() -> None:
    records = [*RECORDS[:2], {**RECORDS[2]}, summary_record(RECORDS, ANSWER)]
    records[1]["bonus"]["node"] = 31
    assert shown(records, 80) == SCREEN


def test_without_a_graph_there_are_no_nodes() -> None:
    bare = [{k: v for k, v in RECORDS[0].items() if k != "anchor"}]
    text = shown(bare, 80, nodes=False)
    assert "node" not in text and " 12 " not in text.split("round")[1] and " 31 " not in text
    assert "round 1 · after ·is\n  token " in text


@pytest.mark.parametrize("columns", [64, 80, 200])
def test_no_line_is_wider_than_the_screen_and_columns_stand_in_line(columns: int) -> None:
    draft = [token(text, "accepted") for text in ODD]
    draft += [token(text, "rejected", wanted={"token": 1, "text": text}) for text in ODD]
    records = [round_of(n, draft, text, after={"token": 1, "text": text}) for n, text in enumerate(ODD, start=1)]
    summary = summary_record(records, {**ANSWER, "drafting_off": "so it is " * 40})
    text = shown([*records, summary], columns, prompt="".join(ODD) * 30)
    lines = text.splitlines()
    assert max(width(line) for line in lines) <= columns
    rows = [line for line in lines if "✓" in line or "✗" in line]
    assert len({width(re.split("[✓✗]", line)[0]) for line in rows}) == 1
    assert all(line.count(ISOLATE) == line.count(END_ISOLATE) for line in lines)
    assert not set(text) & set("\x1b\u202e\t\r")


def test_colours_are_the_only_orders_to_a_terminal() -> None:
    records = [round_of(1, [token(text, "accepted") for text in ODD], "\x1b]0;title\x07"), summary_record([], ANSWER)]
    text = shown(records, 80, force_terminal=True, color_system="256")
    assert "\x1b[38;5;" in text
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == shown(records, 80)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stdout", "variables", "plain", "coloured"),
    [
        (Terminal(), {}, False, True),
        (Terminal(), {}, True, False),
        (Terminal(), {"NO_COLOR": "1"}, False, False),
        (Terminal(), {"TERM": "dumb"}, False, False),
        (io.StringIO(), {}, False, False),
    ],
    ids=["terminal", "--no-color", "NO_COLOR", "dumb", "pipe"],
)
def test_colours_only_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO, variables: dict[str, str], plain: bool, coloured: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color", "COLUMNS": "80"} | variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "stdout", stdout)
    screen = Screen(console_for(plain=plain), nodes=True)
    screen.round(RECORDS[0])
    assert ("\x1b[" in stdout.getvalue()) == coloured


# --- the command


def run(*args: object, stdin: str | None = None, **options: Any) -> Any:
    return CliRunner(**options).invoke(cli.app, ["annotate", *map(str, args)], input=stdin)


def done(*args: object, **options: Any) -> str:
    result = run(*args, **options)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result.stdout


def failed(*args: object, code: int = 1) -> str:
    result = run(*args)
    assert (result.exit_code, result.stdout) == (code, ""), (result.stdout, result.stderr, result.exception)
    return result.stderr


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    write_rows(folder / "test.jsonl", 3, seed=9)
    return folder


@pytest.fixture(scope="module")
def given(compiled: Compiled, tiny_teacher_path: Path, rows: Path) -> tuple[object, ...]:
    return ("--model", tiny_teacher_path, "--graph", compiled.path, "--data", rows, "--num-draft-tokens", 5, "-m", 24)


def test_a_row_of_data_is_watched(given: tuple[object, ...]) -> None:
    text = done(*given, "--idx", 2)
    assert "test.jsonl:3," in "".join(text.split("\n\n")[0].split())
    assert "round 1 · after ␊ · anchored on node " in text
    assert re.search(r"\nround 2 · after .* · re-anchored on node \d+", text)
    assert re.search(r"\ntotal     \d+ tokens in \d+ forwards: ", text)
    assert text != done(*given, "--idx", 1)


def test_json_lines_are_the_rounds_and_then_the_whole(given: tuple[object, ...]) -> None:
    lines = [json.loads(line) for line in done(*given, "--json").splitlines()]
    *rounds, summary = lines
    assert [r["kind"] for r in lines] == ["round"] * len(rounds) + ["summary"]
    assert summary["prompt_source"].endswith("test.jsonl:1")
    assert all(isinstance(r["draft"], list) and isinstance(r["anchor"], int | None) for r in rounds)
    assert sum(r["emitted"] for r in rounds) == len(summary["token_ids"])
    assert {"probability", "path_probability", "node", "source", "verdict", "text"} <= rounds[0]["draft"][0].keys()


def test_the_answer_is_that_of_generate(compiled: Compiled, tiny_teacher_path: Path) -> None:
    options = ["--model", tiny_teacher_path, "--prompt", "How are you?\\nwell", "-m", "20", "--json"]
    plain = CliRunner().invoke(cli.app, ["generate", *map(str, options)])
    for drafting in ([], ["--graph", compiled.path, "--num-draft-tokens", 4], ["--drafter", "lookup"]):
        answer = json.loads(done(*options, *drafting).splitlines()[-1])
        assert answer["token_ids"] == json.loads(plain.stdout)["token_ids"]
    sampled = [*options, "--temp", "1.5", "--top-p", "0.9", "--top-k", "50", "--seed", "3"]
    plain = CliRunner().invoke(cli.app, ["generate", *map(str, sampled)])
    answer = json.loads(done(*sampled, "--graph", compiled.path, "--num-draft-tokens", 4).splitlines()[-1])
    assert answer["token_ids"] == json.loads(plain.stdout)["token_ids"]


def test_drafters_without_nodes_have_no_node_column(tiny_teacher_path: Path) -> None:
    options = ("--model", tiny_teacher_path, "--prompt", "one two one two one two", "-m", 12)
    text = done(*options, "--drafter", "lookup", "--num-draft-tokens", 3)
    assert "token" in text and "node" not in text and "prompt " in text
    records = [json.loads(line) for line in done(*options, "--drafter", "none", "--json").splitlines()]
    assert all("anchor" not in r and r["draft"] == [] for r in records[:-1])
    text = done(*options)
    assert "drafting  off: no graph was given" in text and re.match(r"prompt    \d+ tokens\n", text)


def test_a_terminal_that_lacks_the_signs_gets_escapes(given: tuple[object, ...]) -> None:
    assert "\\u2713" in done(*given, charset="ascii")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--data", "x.jsonl", "--prompt", "hi"], "one of them"),
        ([], "one of them"),
        (["--prompt", "hi", "--idx", "1"], "--idx goes with --data"),
        (["--data", "x.jsonl", "--system-prompt", "be kind"], "--system-prompt goes with --prompt"),
        (["--data", "x.jsonl", "--idx", "-1"], "--idx"),
    ],
)
def test_options_that_go_nowhere_are_refused(tiny_teacher_path: Path, options: list[str], told: str) -> None:
    assert told in failed("--model", tiny_teacher_path, *options, code=2)


def test_what_cannot_be_watched_is_told(tiny_teacher_path: Path, given: tuple[object, ...]) -> None:
    assert "end at 2: give a number up to that" in failed(*given, "--idx", 3)
    assert "There is no data at" in failed("--model", tiny_teacher_path, "--data", "nowhere.jsonl")
    assert "--drafter graph needs --graph" in failed(
        "--model", tiny_teacher_path, "--prompt", "a", "--drafter", "graph"
    )
    assert "The prompt is empty" in failed("--model", tiny_teacher_path, "--prompt", " ")
