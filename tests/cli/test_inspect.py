"""inspect: what it tells of whether a graph pays, for whom, on what, and what it says where that is not known."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import full_graph, random_graph, write_rows
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.cli.inspect import OF_OWN_TEXT, inspect
from daari_mlx.cost import probe
from daari_mlx.cost.curves import CURVES, Curve
from daari_mlx.cost.length import Cost
from daari_mlx.cost.probe import ProbeRecord
from daari_mlx.graph.artifact import STATS, save_graph
from daari_mlx.graph.outlook import HeldOut, Outlook, Promise
from daari_mlx.ground.legible import width
from daari_mlx.measure.forecast import forecast
from daari_mlx.measure.prospect import (
    HERE,
    first_verdict,
    kept_outlook,
    measured_here,
    next_command,
    prospect,
    verdict,
    why_unknown,
)
from daari_mlx.share.find import load_graph
from daari_mlx.share.scrub import scrub
from daari_mlx.show.inspect_lines import _more, screen

TEACHER = {"structure": "s1", "quantisation": None, "source": "some/model", "adapter": "abc", "adapter_path": "my dir"}
GOOD = Outlook((HeldOut(10, (Promise((0.98,) * 6, 6),) * 30),) * 5)
BAD = Outlook((HeldOut(10, (Promise((0.2,), 0),) * 30),) * 5)
STEEP = Curve(HERE, Cost((1, 33), (1.0, 33.0)), "by hand")


def run(*args: object, columns: int = 80) -> Any:
    return CliRunner().invoke(cli.app, ["inspect", *map(str, args)], env={"COLUMNS": str(columns)})


def done(*args: object, columns: int = 80) -> Any:
    result = run(*args, columns=columns)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def told(*args: object) -> dict[str, Any]:
    return json.loads(done(*args, "--json").stdout)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Keeps a T(m) for the teacher with some fingerprint, in a cache folder of the test's own."""
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))

    def keep(teacher: dict[str, Any], slope: float = 0.05) -> None:
        rows = tuple(range(1, 34))
        seconds = tuple(0.02 * (1 + slope * (m - 1)) for m in rows)
        assert probe.save(ProbeRecord(probe.key_for(teacher), rows, seconds, 0.01, 256, 7)) is not None

    return keep


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "empty"))


# --- the verdict


@pytest.mark.usefixtures("nowhere")
def test_it_tells_of_every_published_machine(compiled: Any) -> None:
    view = told(compiled.path)
    assert [m["device"] for m in view["held_out"]["machines"]] == list(CURVES)
    outlook = Outlook.of_record(compiled.stats["held_out"])
    for machine in view["held_out"]["machines"]:
        found = forecast(outlook, CURVES[machine["device"]])
        assert machine["speedup"] == pytest.approx(found.speedup)
        assert machine["tokens_per_forward"] == pytest.approx(found.tokens_per_forward)
        assert machine["pays"] is found.pays and machine["verdict"] == verdict(found)
        assert (machine["why_not"] is None) is machine["pays"] and machine["low"] <= machine["speedup"]
    assert view["held_out"]["answers"] == compiled.stats["held_out"]["answers"] > 0
    assert sum(b["tokens"] for b in view["held_out"]["reliability"]) == view["held_out"]["draft_tokens"]
    assert view["probe_command"] == f"daari-mlx probe --model {compiled.teacher.source}"
    assert view["held_out_from"].startswith("the teacher's own") and view["held_out_missing"] is None
    assert view["states"] == compiled.stats["states"] and "promises" not in json.dumps(view)
    shown = done(compiled.path).stdout
    assert view["probe_command"] in shown and all(f"\n{name} " in shown for name in CURVES)


def test_a_measured_machine_comes_first(compiled: Any, measured: Any) -> None:
    measured(compiled.graph.teacher)
    view = told(compiled.path)
    here = view["held_out"]["machines"][0]
    assert here["device"] == HERE and view["probe_command"] is None
    assert "measured by daari-mlx probe" in here["source"]
    outlook = Outlook.of_record(compiled.stats["held_out"])
    slope = Curve(HERE, Cost((1, 33), (1.0, 2.6)), "")
    assert here["speedup"] == pytest.approx(forecast(outlook, slope).speedup)
    assert here["verdict"] in " ".join(done(compiled.path, columns=200).stdout.split())


def test_a_device_is_told_of_alone(compiled: Any) -> None:
    view = told(compiled.path, "--device", "m4-pro-4bit")
    (machine,) = view["held_out"]["machines"]
    assert machine["device"] == "m4-pro-4bit" and view["probe_command"] is None
    shown = done(compiled.path, "--device", "m4-pro-4bit", columns=200).stdout
    assert machine["verdict"] in shown and "m3-max" not in shown
    assert len(told(compiled.path, "--device", "all")["held_out"]["machines"]) == len(CURVES)


def test_an_unknown_device_names_those_there_are(compiled: Any) -> None:
    result = run(compiled.path, "--device", "m9")
    assert result.exit_code == 1 and result.stdout == ""
    assert all(name in result.stderr for name in ("'m9'", *CURVES))
    assert all(name in re.sub(r"\s+", "", run("--help").stdout) for name in CURVES)


def test_verdicts_in_words() -> None:
    assert verdict(forecast(GOOD, CURVES["linear"])) == (
        "pays: about 6.0 tokens per forward, 4.7x plain decoding on linear"
    )
    lost = verdict(forecast(BAD, STEEP))
    assert lost.startswith("will not pay on this machine: expected 1.0 tokens per forward, a forward over 2 tokens")


# --- where something is missing


@pytest.mark.usefixtures("nowhere")
def test_the_command_that_measures_is_one_to_paste() -> None:
    curve, command = measured_here(replace(random_graph(), teacher=TEACHER))
    assert curve is None
    assert command == "daari-mlx probe --model some/model --adapter-path 'my dir'"
    assert measured_here(replace(random_graph(), teacher={}))[1] == "daari-mlx probe --model MODEL"


def test_another_teachers_measurement_is_not_taken(measured: Any) -> None:
    measured(TEACHER)
    here, other = (replace(random_graph(), teacher={**TEACHER, "structure": s}) for s in ("s1", "s2"))
    assert measured_here(other)[0] is None
    curve, command = measured_here(here)
    assert curve is not None and command is None
    assert curve.most == 32 and curve.cost(11) == pytest.approx(1.5)


@pytest.mark.parametrize("sequences, wanted", [(12, "12 sequences are too few"), (300, "compile it anew"), (None, "")])
def test_a_graph_without_held_out_answers_says_how_to_get_them(
    tmp_path: Path, sequences: int | None, wanted: str
) -> None:
    stats = {} if sequences is None else {"sequences": sequences}
    path = save_graph(full_graph(teacher=TEACHER), tmp_path / "g", stats)
    view = told(path)
    assert view["held_out"] is None and view["held_out_from"] is None
    assert wanted in view["held_out_missing"]
    command = f"daari-mlx inspect {path} --model some/model --adapter-path 'my dir' --data test.jsonl"
    assert f"or run {command}" in view["held_out_missing"]
    assert command in first_verdict(stats, load_graph(path), str(path))
    assert next_command(stats, load_graph(path), str(path)) == command
    shown = " ".join(done(path).stdout.split())
    assert f"not known: {view['held_out_missing'].removesuffix(command)}".strip() in shown
    assert f"\n  {command}\n" in done(path).stdout, "a line of its own, to paste"
    assert "the busiest nodes" in shown


def test_a_graph_whose_stats_are_gone_is_still_inspected(tmp_path: Path) -> None:
    path = save_graph(full_graph(teacher=TEACHER), tmp_path / "g", {})
    (path / STATS).unlink()
    view = told(path)
    assert view["held_out"] is None and view["nodes"] == full_graph().size and view["bytes"] > 1000


def test_a_damaged_record_is_an_error(compiled: Any, tmp_path: Path) -> None:
    path = tmp_path / "g"
    shutil.copytree(compiled.path, path)
    stats = json.loads((path / STATS).read_text())
    (path / STATS).write_text(json.dumps({**stats, "held_out": {**stats["held_out"], "answers": 3}}))
    result = run(path)
    assert result.exit_code == 1 and "held-out answers" in result.stderr and "compile the graph anew" in result.stderr


@pytest.mark.parametrize("value", [None, "text", [1], {"a": 1}, True])
def test_figures_that_are_none_are_left_out(tmp_path: Path, value: Any) -> None:
    """What lies in compile_stats.json is nobody's promise."""
    path = save_graph(full_graph(teacher=TEACHER), tmp_path / "g", {})
    names = ("states", "sequences", "top_edge_mass", "path_reuse", "settings", "nodes", "bytes")
    (path / STATS).write_text(json.dumps(dict.fromkeys(names, value)))
    shown = done(path).stdout
    assert f"\nnodes            {full_graph().size}\n" in shown and "\nstates  " not in shown


def test_the_record_travels_to_the_hub() -> None:
    """It holds no text, so that it may leave the machine."""
    kept, left_out = scrub({"held_out": GOOD.as_record()})
    assert left_out == [] and Outlook.of_record(kept["held_out"]).tokens == GOOD.tokens


def test_where_the_answers_are_from_is_told() -> None:
    from daari_mlx.cli.inspect import _compiled_answers

    kinds = [_compiled_answers({"settings": {"answers": kind}}) for kind in ("teacher", "reference", None)]
    assert len({*kinds, _compiled_answers({})}) == 3
    assert "may differ" in kinds[1]


def test_before_anybody_measures_answers_tell_what_this_machine_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    graph = replace(random_graph(), teacher=TEACHER)
    kept = probe.path_of(probe.key_for(TEACHER), "rounds")
    kept.parent.mkdir(parents=True)
    for text, known in (('{"times": {}}', False), ("[]", False), ('{"times": {"1": [1.0], "9": [2.5, 2.6]}}', True)):
        kept.write_text(text)
        curve, command = measured_here(graph)
        assert (curve is not None) == known and command.startswith("daari-mlx probe --model some/model")
    assert curve.name == HERE and "provisional" in curve.source and curve.cost(9) > 2


@pytest.mark.parametrize("kind", ["reference", "mixed"])
def test_answers_that_are_not_the_teachers_own_promise_nothing(kind: str, tmp_path: Path) -> None:
    """Not known, and the command that finds out; the figures stand there as what would be, never as a verdict."""
    stats = {"held_out": GOOD.as_record(), "settings": {"answers": kind}}
    path = save_graph(full_graph(teacher=TEACHER), tmp_path / "g", stats)
    command = f"daari-mlx inspect {path} --model some/model --adapter-path 'my dir' --data test.jsonl"
    for more in ((), ("--device", "linear")):
        shown = done(path, *more, columns=200).stdout
        assert "not known:" in shown and command in shown and "If its own answers were like those" in shown
        assert " pays" not in shown and "will not pay" not in shown
        view = told(path, *more)
        assert view["ask_command"] == command
        assert {machine["pays"] for machine in view["held_out"]["machines"]} == {None}
        assert all(machine["verdict"].startswith("not known") for machine in view["held_out"]["machines"])
    assert first_verdict(stats, load_graph(path), str(path)).startswith("not known") and why_unknown(stats)
    assert next_command(stats, load_graph(path), str(path)) == command
    own = {**stats, "settings": {"answers": "teacher"}}
    assert why_unknown(own) is None and first_verdict(own, load_graph(path), str(path)).startswith("pays on")
    assert next_command(own, load_graph(path), str(path)).startswith("daari-mlx chat --model some/model")
    assert first_verdict({"sequences": 3}, load_graph(path), "g").startswith("not known: 3 sequences are too few")


# --- on text of one's own


def test_the_teacher_answers_text_of_ones_own(compiled: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", 6, seed=77)
    options = ("--model", compiled.teacher.source, "--data", tmp_path, "-n", 4, "--max-tokens", 40)
    view = told(compiled.path, *options, "--device", "linear")
    assert view["held_out"]["answers"] == 4 and str(tmp_path) in view["held_out_from"]
    from daari_mlx.draft.drafter import GraphDrafter
    from daari_mlx.measure.replay import replay
    from daari_mlx.measure.streams import record
    from daari_mlx.text.data import read_prompts

    prompts = read_prompts(tmp_path / "test.jsonl", compiled.teacher.tokenizer, limit=4).items
    streams = record(compiled.teacher, prompts, ["final"], 40)
    curve, graph = CURVES["linear"], load_graph(compiled.path)
    roomy = replace(streams, max_tokens=-1)  # promises go on where an answer was cut
    found = replay(roomy, lambda s: GraphDrafter(graph, cost=curve.cost, ends=streams.ends), most=curve.most)
    (machine,) = view["held_out"]["machines"]
    assert machine["tokens_per_forward"] == pytest.approx(found.tokens_per_forward)
    assert machine["speedup"] == pytest.approx(found.speedup(curve.cost))


def test_compiled_prompts_measure_nothing(compiled: Any, tmp_path: Path) -> None:
    seen, unseen = tmp_path / "seen.jsonl", tmp_path / "unseen.jsonl"
    write_rows(seen, 3, seed=5)  # of the corpus
    write_rows(unseen, 2, seed=78)
    (tmp_path / "both.jsonl").write_text(seen.read_text() + unseen.read_text())
    options = ("--model", compiled.teacher.source, "--max-tokens", 10)
    result = run(compiled.path, *options, "--data", seen)
    assert result.exit_code == 1 and "compiled from all of these 3 prompts" in result.stderr
    both = done(compiled.path, *options, "--data", tmp_path / "both.jsonl", "--json")
    assert json.loads(both.stdout)["held_out"]["answers"] == 2
    assert "3 of these prompts were compiled into the graph: left out" in both.stderr


def test_options_of_own_text_need_it(compiled: Any) -> None:
    import inspect as python_inspect

    assert set(OF_OWN_TEXT.split()) < set(python_inspect.signature(inspect).parameters)
    result = run(compiled.path, "-n", 3)
    assert result.exit_code == 2 and "goes with --data" in result.stderr
    result = run(compiled.path, "--data", "x.jsonl")
    assert result.exit_code == 2 and "--data needs --model" in result.stderr


def test_another_teacher_is_refused(compiled: Any, tmp_path: Path) -> None:
    write_rows(tmp_path / "test.jsonl", 2, seed=79)
    path = save_graph(full_graph(teacher=TEACHER), tmp_path / "g", {})
    result = run(path, "--model", compiled.teacher.source, "--data", tmp_path)
    assert result.exit_code == 1 and "belongs to another teacher" in result.stderr


# --- the screen


def view_of(outlook: Outlook | None, curves: list[Curve], **more: Any) -> dict[str, Any]:
    texts = ["\n\t\x1b[31m", "語" * 60, "שלום " * 30, "e\u0301\u200b" * 40]
    nodes = [
        {
            "node": 7000 + k,
            "support": 123456,
            "edges": [{"token": 5, "text": text, "probability": 0.5}] * 3,
            "path": [5] * 16,
            "path_text": text,
        }
        for k, text in enumerate(texts)
    ]
    return {
        "graph": "a graph\x1b]0;title\x07 " + "in a folder " * 12,
        "teacher_text": "some/model, not quantised, weights 12345678, tokenizer 12345678, adapter 12345678",
        "layer": "final",
        "nodes": 8192,
        "edges": 100000,
        "prompts": 10**6,
        "bytes": 9 * 10**6,
        "top_edge_mass": 0.9,
        "path_reuse": 3.0,
        "busiest": nodes,
        "held_out": None if outlook is None else prospect(outlook, curves),
        "held_out_from": "the teacher's own to prompts of somewhere",
        "held_out_missing": "nothing was kept",
        "probe_command": None,
        **more,
    }


CASES = [(GOOD, [STEEP, *CURVES.values()]), (BAD, [STEEP, *CURVES.values()]), (GOOD, [*CURVES.values()]), (None, [])]


@pytest.mark.parametrize("columns", [40, 80, 200])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_no_line_is_wider_than_the_screen_and_nothing_reaches_the_terminal_raw(case: int, columns: int) -> None:
    outlook, curves = CASES[case]
    lines = [text for text, _ in screen(view_of(outlook, curves), columns)]
    assert not any(character in line for line in lines for character in "\x1b\x07\t\n")
    if columns >= 80:
        assert max(map(width, lines)) <= columns
    assert sum("→" in line for line in lines) == 4 and ("promised" in "".join(lines)) is (outlook is not None)


@pytest.mark.parametrize("outlook", [GOOD, BAD, None])
@pytest.mark.parametrize("known", [True, False])
def test_that_times_are_provisional_is_told_once_and_only_where_there_are_some(
    outlook: Outlook | None, known: bool
) -> None:
    here = replace(STEEP, name=HERE, source="provisional, from answers given here; daari-mlx probe measures it")
    curves = [here, *CURVES.values()] if known else [*CURVES.values()]
    view = view_of(outlook, curves, probe_command="daari-mlx probe --model some/model")
    shown = "\n".join(text for text, _ in screen(view, 200))
    told = known and outlook is not None
    assert shown.count("rovisional") == told == shown.count("The times below are provisional; to measure them:")
    assert shown.count("not measured yet; to measure them:") == (not told)
    assert shown.count("daari-mlx probe --model some/model") == 1
    if told:
        assert _more({**view["held_out"]["machines"][0], "rows": 6.0}).endswith(
            "a forward checks 6.0 tokens on average, where there is a draft"
        )


def test_every_machine_on_which_it_does_not_pay_has_its_reason() -> None:
    lines = "\n".join(text for text, _ in screen(view_of(BAD, list(CURVES.values())), 200))
    assert lines.count("a forward over 2 tokens takes") == lines.count("will not pay  ") == len(CURVES)
    assert lines.count("are hard to predict") == 1, "the answers are the same everywhere"
    dear = "\n".join(text for text, _ in screen(view_of(GOOD, [CURVES["linear"], replace(STEEP, name="dear")]), 200))
    assert dear.count("too long for what drafts save") == 1 and "predict" not in dear and "pays on 1 of 2" in dear
    assert "will not pay on any machine that others timed" in lines


def test_an_empty_bin_has_no_share() -> None:
    lines = [text for text, _ in screen(view_of(GOOD, [STEEP]), 80)]
    rows = [line for line in lines if re.match(r"\d+–\d+%", line)]
    assert len(rows) == 10
    assert rows[0].split() == ["0–10%", "0"]
    assert rows[9].split()[:4] == ["90–100%", "900", "98.0%", "100.0%"] and "█" * 20 in rows[9]


def test_old_records_do_not_become_an_outlook() -> None:
    assert kept_outlook({"held_out": GOOD.as_record()})[0] is not None
    assert kept_outlook({})[0] is None
