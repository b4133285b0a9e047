"""What leaves this machine when a graph is pushed: no path, no name, nothing unasked; and what its card tells."""

from __future__ import annotations

import getpass
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from graphs import Compiled, full_graph, random_graph
from hub_graphs import PRIVATE, STATS_OF_A_PERSON, TEACHER, done, failed
from hub_stand_in import StandIn
from test_artifact import COUNTED
from typer.testing import CliRunner

from daari_mlx.cli import main as cli
from daari_mlx.graph.artifact import ARRAYS, CARD, CONFIG, STATS, read_stats, save_graph
from daari_mlx.share import publish
from daari_mlx.share.find import load_graph
from daari_mlx.share.scrub import scrub

pytest_plugins = ["hub_fixtures"]


# --- what leaves


def test_no_path_and_no_name_of_this_machine_leaves(server: StandIn, folder: Path) -> None:
    result = done("push", folder.name, "alice/sms", "--yes")
    everything = b"\n".join(server.bodies)
    # what is base64 in the requests is looked at as files
    files = next(iter(server.repositories["alice/sms"].commits.values()))
    for name, content in {**files, "requests": everything}.items():
        for word in (*PRIVATE[:3], str(Path.home()).encode(), str(folder.parent).encode()):
            assert word not in content, (name, word)
    assert getpass.getuser() == "root" or getpass.getuser().encode() not in b"\n".join(files.values())
    assert load_graph("alice/sms").teacher["weights"] == TEACHER["weights"], "fingerprints stay"
    kept = json.loads(files[STATS])
    assert kept["settings"] == {"answers": "teacher", "corpus": "c" * 32}
    assert kept["seconds"] == {"answers": 3.5} and kept["versions"]["mlx"] and kept["states"] == 100
    for name in ("teacher.source", "teacher.adapter_path", "settings.data", "settings.note", "command", "parts"):
        assert name in result.stderr, "what stays is told"
    assert "config_sha256" not in result.stderr and max(map(len, result.stderr.splitlines())) <= 80


def test_what_a_real_graph_counts_goes_along(server: StandIn, compiled: Compiled) -> None:
    made = publish.prepare(compiled.path, "alice/tiny")
    assert made.left_out == ("teacher.source",), "text under a new name: does it belong into scrub.WORDS?"
    known = read_stats(compiled.path)
    assert json.loads(made.files[STATS]) == known
    assert made.tokens > 0 and made.answers > 0


@pytest.mark.parametrize("value", ["fatima", "/home/x", "C:\\Users\\x", "~x", ["/a"], [1, "x"]])
@pytest.mark.parametrize("name", ["anything", "command", "host"])
def test_text_under_an_unknown_name_stays_here(name: str, value: Any) -> None:
    assert scrub({name: value, "n": 3}) == ({"n": 3}, [name])
    assert scrub({"deep": {name: value}, "on": True, "none": None}) == (
        {"deep": {}, "on": True, "none": None},
        [f"deep.{name}"],
    )


def test_a_known_name_does_not_let_a_path_out() -> None:
    assert scrub({"layer": "final", "answers": "/home/x", "versions": {"mlx": "1.0", "x": "me@home"}}) == (
        {"layer": "final", "versions": {"mlx": "1.0"}},
        ["answers", "versions.x"],
    )
    assert scrub({"/home/x": 1, "ok": 2}) == ({"ok": 2}, ["…"])


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ("meta/known", None, "meta/known"),  # the Hub knows it
        ("build/teacher", None, None),  # a folder's path that looks like a name
        ("local/folder", None, None),  # a folder that is here
        ("/abs/folder", None, None),
        ("/abs/folder", "meta/known", "meta/known"),
        ("build/teacher", "someone/else", "someone/else"),
    ],
)
def test_a_teacher_is_named_only_where_the_hub_knows_it(
    server: StandIn, tmp_path: Path, source: str, given: str | None, expected: str | None
) -> None:
    server.add("meta/known", {"config.json": b"{}"})
    server.add("local/folder", {"config.json": b"{}"})
    (tmp_path / "local" / "folder").mkdir(parents=True)
    graph = save_graph(random_graph(3, teacher={**TEACHER, "source": source}), tmp_path / "g", COUNTED)
    result = done("push", graph, "alice/g", "--yes", *(["--base-model", given] if given else []))
    files = next(iter(server.repositories["alice/g"].commits.values()))
    front = yaml.safe_load(files[CARD].decode().split("---\n")[1])
    assert front.get("base_model") == expected and json.loads(files[CONFIG])["teacher"]["source"] == expected
    assert ("base_model_relation" in front) == (expected is not None)
    if expected is None:
        assert source.encode() not in b"\n".join(files.values()) and "--base-model names it" in result.stderr
        assert "--model MODEL --adapter-path ADAPTER --graph alice/g" in files[CARD].decode()


def test_a_push_asks_first(server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = full_graph().text
    told = " ".join(failed("push", folder, "alice/sms").split())
    assert "Nothing was sent: nobody is there to ask. Give --yes" in told
    assert f"60 answers, {len(answers) - 60:,} tokens: whoever has the teacher's tokenizer can read them" in told
    monkeypatch.setattr(
        "daari_mlx.cli.hub.sys", type("Terminal", (), {"stdin": type("T", (), {"isatty": lambda: True})})
    )
    for answer, code in (("n\n", 1), ("\n", 1), ("y\n", 0)):
        assert server.asked("POST", "commit|create|lfs") == 0, "nothing was sent so far"
        result = CliRunner().invoke(cli.app, ["push", str(folder), "alice/sms"], input=answer)
        assert result.exit_code == code and "Send it? [y/N]" in result.stderr
        assert ("Nothing was sent" in result.stderr) == (code == 1)
    assert server.asked("POST", "commit") == 1


def test_a_push_is_private_unless_it_is_said(server: StandIn, folder: Path) -> None:
    done("push", folder, "alice/hidden", "--yes")
    assert server.repositories["alice/hidden"].private
    result = done("push", folder, "alice/open", "--yes", "--public")
    assert not server.repositories["alice/open"].private and "public: everybody can read it" in result.stderr
    commits = len(server.repositories["alice/open"].commits)
    assert "is public, so everybody could read" in failed("push", folder, "alice/open", "--yes")
    assert "is private, and a push does not change that" in failed("push", folder, "alice/hidden", "--yes", "--public")
    assert len(server.repositories["alice/open"].commits) == commits


def test_what_is_no_graph_is_not_overwritten(server: StandIn, folder: Path) -> None:
    server.add("alice/model", {"config.json": b"{}", "model.safetensors": b"w"}, private=True)
    server.add("alice/fresh", {".gitattributes": b"", "README.md": b"mine"}, private=True)
    told = failed("push", folder, "alice/model", "--yes")
    assert "holds other things (config.json, model.safetensors), not a graph" in told
    assert server.repositories["alice/model"].commits.popitem()[1]["config.json"] == b"{}"
    done("push", folder, "alice/fresh", "--yes")


def test_a_damaged_graph_is_not_pushed(server: StandIn, folder: Path) -> None:
    (folder / ARRAYS).write_bytes(b"x" * 100)
    assert "graph.safetensors" in failed("push", folder, "alice/sms", "--yes")
    assert server.requests == []


@pytest.mark.parametrize("name", ["sms", "alice/sms@v1", "alice/b/c"])
def test_a_name_that_cannot_be_pushed_to(server: StandIn, folder: Path, name: str) -> None:
    assert "user/name" in (told := failed("push", folder, name, "--yes")) or "names a revision" in told
    assert server.requests == []


# --- the card


def a_record(**changes: Any) -> dict[str, Any]:
    """A benchmark of the graph in ``folder``, as bench --out writes it."""
    graph = full_graph()
    return {
        "command": "daari-mlx bench --graph /home/fatima/my.graph --data /home/fatima/mail.jsonl",
        "teacher": {"is": f"/home/fatima/models/secret-teacher, weights {'9' * 8}, tokenizer dddddddd"},
        "graph": {"nodes": graph.size, "edges": len(graph.edge_token), "steps": len(graph.step_key), "layer": "final"},
        "versions": {"mlx": "0.32.4", "mlx-lm": "0.32.2"},
        "device": "Apple M3 | Max",
        "dtype": "float32",
        "num_draft_tokens": "auto",
        "ok": True,
        "overlap": 0,
        "n": 60,
        "identity": {"identical": 59, "ties": 1, "failed": 0, "failed_rows": []},
        "decode_ratio": {"median": 5.404, "lower": 4.9, "upper": 5.87, "least": 0.9, "most": 7.0},
        "losing": {"count": 2, "rows": ["/home/fatima/mail.jsonl:7"]},
        "tokens_per_forward": 7.1,
        "acceptance_rate": 0.8812,
        "mean_tokens": 15.2,
        **changes,
    }


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    graph = full_graph(teacher=TEACHER)
    counts = {"nodes": graph.size, "edges": len(graph.edge_token), "steps": len(graph.step_key)}
    return save_graph(graph, tmp_path / "my.graph", {**STATS_OF_A_PERSON, **counts})


def write(path: Path, *records: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_card_tells_the_hub_what_it_is_and_what_was_measured(
    server: StandIn, counted: Path, tmp_path: Path
) -> None:
    other = a_record(graph={"nodes": 1, "edges": 1, "steps": 1}, tokens_per_forward=99.0)
    results = write(
        tmp_path / "r.jsonl", a_record(num_draft_tokens=4, tokens_per_forward=3.3), other, a_record(), {"what": "walk"}
    )
    done("push", counted, "alice/sms", "--yes", "--results", results, "--license", "apache-2.0")
    files = next(iter(server.repositories["alice/sms"].commits.values()))
    _, front, text = files[CARD].decode().split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["license"] == "apache-2.0" and card["library_name"] == "daari-mlx"
    assert card["pipeline_tag"] == "text-generation" and "speculative-decoding" in card["tags"]
    (model,) = card["model-index"]
    (result,) = model["results"]
    assert model["name"] == "sms" and result["dataset"]["name"] == "60 held-out prompts"
    values = {metric["type"]: metric["value"] for metric in result["metrics"]}
    assert values == {"tokens_per_forward": 7.1, "acceptance_rate": 0.8812, "decode_ratio": 5.404}
    assert "| 60 of 15 tokens | 4 | 59 of 60 | 3.30 |" in text
    assert "| 60 of 15 tokens | auto | 59 of 60 | 7.10 | 88% | 5.40x (4.90–5.87) | 2 of 60 | Apple M3 / Max, " in text
    assert "99.00" not in text and not any(word in files[CARD] for word in PRIVATE[:3])
    assert "read those answers" in text and "--graph alice/sms" in text


def test_the_card_of_a_graph_that_stays_here_has_front_matter_too(folder: Path) -> None:
    front = yaml.safe_load((folder / CARD).read_text().split("---\n")[1])
    assert front == {
        "library_name": "daari-mlx",
        "pipeline_tag": "text-generation",
        "tags": ["mlx", "daari-mlx", "speculative-decoding"],
    }


@pytest.mark.parametrize(
    ("records", "told"),
    [
        ([{"graph": {"nodes": 7}}], r"found 1 records of other things, 0 on prompts"),
        ([{"teacher": {"is": "x, weights 88888888"}}], r"found 1 records of other things"),
        ([{"overlap": 3}], r"found 0 records of other things, 1 on prompts that the graph was compiled from"),
        ([{}, {"ok": False, "identity": {"identical": 58, "failed": 2}}], r"has 2 answers that are not plain's own"),
        ([], "is empty. Give a file that daari-mlx bench --out wrote"),
    ],
)
def test_figures_that_are_none_of_this_graph_are_refused(
    server: StandIn, counted: Path, tmp_path: Path, records: list[dict[str, Any]], told: str
) -> None:
    results = write(tmp_path / "r.jsonl", *(a_record(**changes) for changes in records))
    assert re.search(told, failed("push", counted, "alice/sms", "--yes", "--results", results))
    assert server.asked("POST", ".") == 0


@pytest.mark.parametrize("path", sorted(publish.TOLD))
@pytest.mark.parametrize("value", [None, "x", 3, True, [1], {"a": 1}])
def test_a_record_that_lacks_what_a_card_tells_is_another_things(tmp_path: Path, path: str, value: Any) -> None:
    kinds = publish.TOLD[path]
    if isinstance(value, kinds) and isinstance(value, bool) == (kinds is bool):
        return
    record = json.loads(json.dumps(a_record()))
    assert publish._is_benchmark(record)
    *outer, last = path.split(".")
    inner = record
    for name in outer:
        inner = inner[name]
    inner[last] = value
    assert not publish._is_benchmark(record)
    del inner[last]
    assert not publish._is_benchmark(record)
    assert not publish._is_benchmark({**record, path.split(".")[0]: value})


@pytest.mark.parametrize("content", [None, b"{", b"[1]\n", b"\xff\n"])
def test_results_that_cannot_be_read(server: StandIn, counted: Path, tmp_path: Path, content: bytes | None) -> None:
    results = tmp_path / "r.jsonl"
    if content is not None:
        results.write_bytes(content)
    assert str(results) in failed("push", counted, "alice/sms", "--yes", "--results", results)


def test_metadata_that_the_hub_refuses_is_told(server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "card_text", lambda *_, **__: "---\n{\n---\n")
    assert "refused a request about alice/sms (400): Invalid metadata" in failed("push", folder, "alice/sms", "--yes")
    assert server.repositories["alice/sms"].commits == {}
