"""Every option of every command: empty, no text, no number, or a place that holds something odd; refused before work.

The options are read off the application, so that a new one is held against the same rules.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import mlx_lm
import pytest
import typer
from graphs import Compiled
from special import KINDS, make, seen
from typer.testing import CliRunner

from daari_mlx.cli import main as cli

pytestmark = pytest.mark.timeout(60)  # what opens a pipe waits for ever

MODEL, DATA, GRAPH = "the model", "rows.jsonl", "the.graph"  # in the current folder, see `place`
ROWS = ["--model", MODEL, "--data", DATA]
COMPLETE: dict[str, list[str]] = {  # words with which each command would begin to work
    "compile": [*ROWS, "--graph-path", "new"],
    "extract": [*ROWS, "--workdir", "work"],
    "generate": ["--model", MODEL, "-p", "hi"],
    "chat": ["--model", MODEL],
    "annotate": ["--model", MODEL, "-p", "hi"],
    "bench": [*ROWS, "--graph", GRAPH],
    "merge": [GRAPH, GRAPH, "--graph-path", "new"],
    "inspect": [GRAPH],
    "plot": ["speed", DATA, "--out", "new.png"],
    "probe": ["--model", MODEL],
    "tier": [*ROWS, "--out", "new"],
    "push": [GRAPH, "user/repo", "--yes"],
    "pull": ["user/repo", "--graph-path", "new"],
    "map": [*ROWS, "--out", "new.jsonl"],
    "learn": [GRAPH],
    "server": ["--model", MODEL, "--port", "0"],
    "version": [],
}
WITH: dict[tuple[str, str], list[str]] = {  # what else an option needs, in place of the command's complete words
    ("annotate", "--data"): ["--model", MODEL],
    ("inspect", "--data"): [GRAPH, "--model", MODEL],
    ("inspect", "--adapter-path"): [GRAPH, *ROWS],
    ("plot", "--model"): ["nodes", GRAPH, "--out", "new.png"],
    ("bench", "--replay"): ["--graph", GRAPH],
    ("bench", "--save-streams"): ROWS,
    ("compile", "--update"): ROWS,
}
NEW = {  # options that name what is written
    ("compile", "--graph-path"),
    ("compile", "--workdir"),
    ("extract", "--workdir"),
    ("merge", "--graph-path"),
    ("tier", "--out"),
    ("pull", "--graph-path"),
    ("bench", "--out"),
    ("bench", "--save-streams"),
    ("plot", "--out"),
    ("map", "--out"),
    ("map", "--learn"),
    ("generate", "--learn"),
    ("chat", "--learn"),
    ("server", "--learn"),
    ("server", "--prompt-cache-dir"),
}
READ = {  # and what is read, whatever the command
    "--model",
    "--adapter-path",
    "--draft-model",
    "--graph",
    "--update",
    "--data",
    "--json-schema",
    "--prompt-cache-file",
    "--replay",
    "--results",
    "graph",
    "other",
    "sources",
}
NO_PLACE = {  # text, numbers, repositories and names of other things
    "--allowed-origins",
    "--api-key",
    "--host",
    "--max-body-bytes",
    "--prefix",
    "--prompt-cache-bytes",
    "--served-model-name",
    "--template",
    "--base-model",
    "--chat-template-config",
    "--chat-feature",
    "--completion-feature",
    "--concurrency",
    "--prompt-feature",
    "--text-feature",
    "--device",
    "--extra-eos-token",
    "--license",
    "--message",
    "--prefill-response",
    "--prompt",
    "--split",
    "--stop",
    "--system-prompt",
    "repo",
    "kind",
}


class Option(NamedTuple):
    """An option or argument of a command that takes a value."""

    command: str
    name: str
    param: Any

    def words(self, value: str) -> list[str]:
        """A command line that is complete, with this value."""
        words = list(WITH.get((self.command, self.name), COMPLETE[self.command]))
        if self.param.param_type_name == "argument":
            order = [p.name for p in COMMANDS[self.command].params if p.param_type_name == "argument"]
            words[order.index(self.param.name)] = value
            return [self.command, *words]
        for name in self.param.opts:
            if name in words:
                del words[words.index(name) : words.index(name) + 2]
        return [self.command, *words, self.name, value]


COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
OPTIONS = [
    Option(command, max(param.opts, key=len), param)
    for command, found in COMMANDS.items()
    for param in found.params
    if not getattr(param, "is_flag", False) and param.name != "help"
]


def of(keep: Callable[[Option], bool]) -> Any:
    some = [option for option in OPTIONS if keep(option)]
    return pytest.mark.parametrize("option", some, ids=[f"{o.command} {o.name}" for o in some])


def takes_a_number(option: Option) -> bool:
    return "N" in str(option.param.metavar).split("|") or "INDEX" in str(option.param.metavar)


@pytest.fixture
def place(tmp_path: Path, compiled: Compiled, tiny_teacher_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder in which the complete words name something; no model can be loaded."""
    (tmp_path / MODEL).symlink_to(tiny_teacher_path)
    (tmp_path / GRAPH).symlink_to(compiled.path)
    (tmp_path / DATA).write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
    monkeypatch.chdir(tmp_path)

    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr(mlx_lm, "load", load)
    return tmp_path


def refused(*words: str) -> str:
    """What is said to words that are refused, without the line breaks that a terminal needs."""
    result = CliRunner().invoke(cli.app, list(words), input="")
    assert isinstance(result.exception, SystemExit), (result.exception, result.stderr)
    assert result.exit_code in (1, 2) and result.stdout == ""
    return " ".join(result.stderr.split())


def test_every_option_has_its_kind_and_every_command_its_words() -> None:
    assert set(COMPLETE) == set(COMMANDS), "say here what makes the new command complete"
    for option in OPTIONS:
        if takes_a_number(option) or option.param.metavar in (None, "True|False"):  # the latter choose among words
            continue
        kinds = [(option.command, option.name) in NEW, option.name in READ, option.name in NO_PLACE]
        assert sum(kinds) == 1 or option.name in ("--out", "--graph-path"), f"say here what {option[:2]} names"


@of(lambda option: option.param.metavar != "TEXT")
def test_an_empty_word_is_refused_by_the_options_name(option: Option, place: Path) -> None:
    before = seen(place / DATA)
    told = refused(*option.words(""))
    assert option.name in told or str(option.param.metavar) in told, told
    assert seen(place / DATA) == before


@of(lambda option: True)
def test_bytes_that_are_no_text_are_refused_by_the_options_name(option: Option, place: Path) -> None:
    before = seen(place / DATA)
    words = option.words("caf\udce9")
    lines = [words, [*words[:-2], f"{option.name}=caf\udce9"]] if option.name.startswith("--") else [words]
    for line in lines:
        told = refused(*line)
        assert r"caf\xe9' is no UTF-8 text" in told
        assert option.name in told or "argument" in told
    assert seen(place / DATA) == before


@of(takes_a_number)
def test_what_is_no_number_is_refused_by_the_options_name(option: Option, place: Path) -> None:
    before = seen(place / DATA)
    for word in ("inf", "-inf", "nan", "1e999", str(10**30), "9" * 5000, "1.5x", "True"):
        if not (option.name == "--temp" and word == str(10**30)):  # as hot as that is hot
            assert option.name in refused(*option.words(word)), word
    assert seen(place / DATA) == before


@of(lambda option: (option.command, option.name) in NEW)
def test_what_stands_where_something_new_is_named_stays(option: Option, place: Path) -> None:
    for number, kind in enumerate(KINDS):
        name = f"odd{number}.png" if option.command == "plot" else f"odd{number}"
        make(kind, place / name)
        before = seen(place / DATA)
        assert name in refused(*option.words(name))
        assert seen(place / DATA) == before


@of(lambda option: option.name in READ)
def test_what_is_odd_is_not_read(option: Option, place: Path) -> None:
    for number, kind in enumerate(KINDS):
        name = f"odd{number}"
        make(kind, place / name)
        before = seen(place / DATA)
        assert name in refused(*option.words(name))
        assert seen(place / DATA) == before


HOLDS = {  # files by which a folder is known, and which are read of it
    **dict.fromkeys(("--model", "--draft-model"), ("config.json", "tokenizer.json", "model.safetensors")),
    "--adapter-path": ("adapter_config.json", "adapters.safetensors"),
    **dict.fromkeys(("--graph", "--update", "graph", "other"), ("config.json", "graph.safetensors")),
    "--data": ("train.jsonl", "test.jsonl"),
}


@of(lambda option: option.name in HOLDS)
def test_a_folder_with_something_odd_in_it_is_not_read(option: Option, place: Path) -> None:
    names = HOLDS[option.name]
    for odd in names:
        folder = place / f"with {odd}"
        folder.mkdir()
        for name in names:
            source = place / (GRAPH if "graph.safetensors" in names else MODEL) / name
            (folder / name).write_bytes(source.read_bytes() if source.exists() else b"{}")
        (folder / odd).unlink()
        make("a pipe", folder / odd)
        before = seen(folder / odd)
        words = option.words(folder.name)
        words += ["--split", odd.removesuffix(".jsonl")] if option.name == "--data" else []
        assert odd in refused(*words)
        assert seen(folder / odd) == before


@pytest.mark.parametrize(
    "words", [("inspect", "it"), ("push", "it", "a/b", "--yes"), ("plot", "length", "it", "--out", "x.png")]
)
def test_the_figures_of_a_graph_that_are_odd_are_not_read(words: tuple[str, ...], place: Path) -> None:
    shutil.copytree(place / GRAPH, place / "it")
    (place / "it" / "compile_stats.json").unlink()
    make("a pipe", place / "it" / "compile_stats.json")
    assert "compile_stats.json" in refused(*words)
