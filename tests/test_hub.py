"""Graphs on the Hub, against a stand-in for its HTTP API on loopback: there and back, and what goes wrong."""

from __future__ import annotations

import errno
import getpass
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from graphs import Compiled, full_graph, random_graph
from hub_stand_in import TOKEN, Fault, StandIn
from huggingface_hub import constants
from test_artifact import COUNTED, assert_same
from typer.testing import CliRunner

from daari_mlx import cli, hub, publish
from daari_mlx.artifact import (
    ARRAYS,
    CARD,
    CONFIG,
    LIMITS,
    MAX_JSON,
    STATS,
    attach,
    graph_folder,
    load_graph,
    read_stats,
    save_graph,
)
from daari_mlx.errors import DaariError
from daari_mlx.repo import Repo, parse_repo
from daari_mlx.scrub import scrub

TEACHER = {
    "model_type": "llama",
    "weights": "9" * 32,
    "tokenizer": "d" * 32,
    "quantisation": "4-bit affine, group 64",
    "vocab_size": 60,
    "adapter": "5" * 32,
    "source": "/home/fatima/models/secret-teacher",
    "adapter_path": "/home/fatima/adapters",
}
PRIVATE = (b"fatima", b"/home", b"secret", b"~")
STATS_OF_A_PERSON = {
    **COUNTED,
    "settings": {"answers": "teacher", "corpus": "c" * 32, "data": "/home/fatima/mail.jsonl", "note": "fatima's"},
    "command": "daari-mlx compile --model /home/fatima/models/secret-teacher --data ~/secret.jsonl",
    "seconds": {"answers": 3.5, "/home/fatima/mail.jsonl": 1.0},
    "parts": ["/home/fatima/a.graph"],
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """The stand-in, with its own empty cache; alice is signed in, and nobody waits between retries."""
    stand_in = StandIn()
    monkeypatch.setattr(constants, "ENDPOINT", stand_in.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", stand_in.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # its storage has another protocol
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr(hub, "_fetched", {})
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    yield stand_in
    stand_in.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_graph(full_graph(teacher=TEACHER), tmp_path / "my.graph", STATS_OF_A_PERSON)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def done(*args: object) -> Any:
    result = run(*args)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def failed(*args: object) -> str:
    """The one line on stderr that tells a mistake; stdout stays empty."""
    result = run(*args)
    assert result.exit_code == 1 and result.stdout == "", (result.stdout, result.stderr, result.exception)
    assert isinstance(result.exception, SystemExit)
    return str(result.stderr)


# --- there and back


def test_a_pushed_graph_comes_back_and_drafts_the_same(server: StandIn, folder: Path, tmp_path: Path) -> None:
    pushed = json.loads(done("push", folder, "alice/sms", "--yes", "--json").stdout)
    assert pushed["url"] == f"{server.url}/alice/sms" and pushed["private"] and pushed["base_model"] is None
    repository = server.repositories["alice/sms"]
    assert repository.private and set(repository.commits[pushed["commit"]]) == set(LIMITS)
    assert len(repository.commits) == 1, "one commit: nobody can fetch half of it"
    ours = load_graph(folder)
    for back in (load_graph("alice/sms"), load_graph(f"alice/sms@{pushed['commit']}")):
        assert_same(ours.edge_probability, back.edge_probability)
        assert_same(ours.arbiter, back.arbiter)
        assert {**ours.teacher, "source": None, "adapter_path": None} == back.teacher
    assert read_stats("alice/sms")["nodes"] == 12
    pulled = json.loads(done("pull", "alice/sms", "--graph-path", tmp_path / "back", "--json").stdout)
    assert pulled["commit"] == pushed["commit"] and pulled["bytes"] == pushed["bytes"]
    assert contents(tmp_path / "back") == repository.commits[pushed["commit"]]
    assert not any(path.is_symlink() for path in (tmp_path / "back").iterdir())


def test_a_second_push_is_a_new_commit_and_both_can_be_had(server: StandIn, folder: Path, tmp_path: Path) -> None:
    first = json.loads(done("push", folder, "alice/sms", "--yes", "--json").stdout)["commit"]
    assert len(load_graph("alice/sms").prompts) == 2
    save_graph(random_graph(4, teacher=TEACHER), folder, COUNTED)
    second = json.loads(done("push", folder, "alice/sms", "--yes", "--json").stdout)["commit"]
    assert first != second
    assert load_graph("alice/sms").vocab_size == 30, "what this process pushed itself is seen"
    assert load_graph("alice/sms", revision=first).vocab_size == 60
    server.repositories["alice/sms"].branches["v1"] = first
    assert load_graph("alice/sms@v1").vocab_size == 60
    done("pull", "alice/sms@v1")
    assert load_graph(tmp_path / "sms").vocab_size == 60, "a folder of the repository's name, here"
    assert "sms is here already: name a folder with --graph-path" in failed("pull", "alice/sms")


def test_only_the_four_files_are_fetched_and_only_once(server: StandIn, folder: Path) -> None:
    server.add(
        "alice/sms", {**contents(folder), "evil.py": b"boom", "weights.safetensors": b"x" * 999, "a/b.json": b""}
    )
    for _ in range(3):
        load_graph("alice/sms")
    assert server.asked("GET", r"^/alice/sms/resolve") == 4 and server.asked("GET", "^/api/models/alice/sms") == 1
    assert sorted(p.name for p in graph_folder("alice/sms").iterdir()) == sorted(LIMITS)
    hub._fetched.clear()  # another process: what is in the cache is not fetched again
    load_graph("alice/sms")
    assert server.asked("GET", r"^/alice/sms/resolve") == 4
    before = len(server.requests)
    load_graph(f"alice/sms@{graph_folder('alice/sms').name}")
    assert len(server.requests) == before, "a commit never changes: nobody is asked"


def test_a_repository_goes_wherever_a_path_does(
    server: StandIn, compiled: Compiled, tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path, tmp_path: Path
) -> None:
    from daari_mlx import SpecEngine, generate

    server.add("alice/tiny", contents(compiled.path))
    model, tokenizer = tiny_teacher
    expected = generate(model, tokenizer, "Your visit", graph=compiled.path, max_tokens=8)
    assert generate(model, tokenizer, "Your visit", graph="alice/tiny", max_tokens=8) == expected
    assert SpecEngine(model, "alice/tiny@main", tokenizer=tokenizer).graph is not None
    assert attach(Path("alice/tiny"), model, tokenizer).size == compiled.graph.size
    args = ["--model", tiny_teacher_path, "--graph", "alice/tiny", "-p", "Your visit", "-m", "8", "--json"]
    assert json.loads(done("generate", *args).stdout)["drafted"] > 0
    assert f"nodes            {compiled.graph.size}" in done("inspect", "alice/tiny").stdout
    data = tmp_path / "test.jsonl"
    data.write_text('{"messages": [{"role": "user", "content": "A visit to the eye clinic"}]}\n')
    args = ["--model", tiny_teacher_path, "--graph", "alice/tiny", "--data", data, "-n", "1", "-m", "8", "--json"]
    assert json.loads(done("bench", *args).stdout)["graph"]["nodes"] == compiled.graph.size


def test_a_folder_that_exists_wins_over_a_repository(server: StandIn, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "alice").mkdir()
    folder.rename(tmp_path / "alice" / "sms")
    assert load_graph("alice/sms").size == 12 and server.requests == []
    with pytest.raises(DaariError, match="is a folder here and has no revision 'v1'"):
        load_graph("alice/sms", revision="v1")


@pytest.mark.parametrize(
    "name", ["nowhere", "a/b/c", "./alice/sms", "../sms", "/alice/sms", "alice/", "a b/c", "é/è", ""]
)
def test_what_names_neither_a_folder_nor_a_repository_is_told_without_asking(server: StandIn, name: str) -> None:
    with pytest.raises(DaariError, match=r"There is no graph at .*: give the folder .* or a Hub repository as user"):
        load_graph(name)
    assert server.requests == []


def test_names_of_repositories() -> None:
    assert parse_repo("alice/sms") == Repo("alice/sms")
    assert parse_repo("a-1/b_2.graph@refs/pr/3") == Repo("a-1/b_2.graph", "refs/pr/3")
    assert str(Repo("a/b", "v1")) == "a/b@v1"
    for wrong in ("alice", "-a/b", "a/b.", "a/b.git", "a--b/c", "a..b/c", "a/b@", "a/b@x y", "a" * 96 + "/b", "a/b/c"):
        assert parse_repo(wrong) is None, wrong
    with pytest.raises(DaariError, match="Two revisions were given"):
        graph_folder("nobody/nothing@a", "b")


def test_the_environment_names_the_hub(server: StandIn, folder: Path, tmp_path: Path) -> None:
    server.add("alice/sms", contents(folder))
    environment = {
        **os.environ,
        "HF_ENDPOINT": server.url,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    command = [sys.executable, "-c", "from daari_mlx.cli import main; main()", "pull", "alice/sms"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    assert contents(tmp_path / "sms") == contents(folder)


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
        "daari_mlx.cli_hub.sys", type("Terminal", (), {"stdin": type("T", (), {"isatty": lambda: True})})
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
        ([{}, {"ok": False, "identity": {"failed": 2}}], r"has 2 answers that are not plain's own"),
        ([], "No benchmark of this graph"),
    ],
)
def test_figures_that_are_none_of_this_graph_are_refused(
    server: StandIn, counted: Path, tmp_path: Path, records: list[dict[str, Any]], told: str
) -> None:
    results = write(tmp_path / "r.jsonl", *(a_record(**changes) for changes in records))
    assert re.search(told, failed("push", counted, "alice/sms", "--yes", "--results", results))
    assert server.asked("POST", ".") == 0


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


# --- what goes wrong


def test_what_is_private_needs_a_token(server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("alice/hidden", contents(folder), private=True)
    monkeypatch.delenv("HF_TOKEN")
    for command in (["pull", "alice/hidden"], ["inspect", "alice/hidden"]):
        told = failed(*command)
        assert "no repository 'alice/hidden' that you may read (401)" in told and "log in with 'hf auth login'" in told
    assert "nobody is logged in" in (told := failed("push", folder, "alice/new", "--yes")) and "(401)" in told
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    done("pull", "alice/hidden")


def test_what_is_absent(server: StandIn, folder: Path) -> None:
    server.add("alice/sms", contents(folder))
    told = failed("pull", "alice/absent")
    assert told.startswith("error: The Hub at http") and "(404). Check the name" in told
    told = failed("inspect", "alice/absent")
    assert "There is no folder 'alice/absent' here. The Hub at http" in told and "(404). Check the name" in told
    assert "has no revision 'v9': give a branch, tag or commit" in failed("inspect", "alice/sms@v9")
    assert "has no revision '" in failed("inspect", f"alice/sms@{'0' * 40}")


def test_somebody_elses_name(server: StandIn, folder: Path) -> None:
    told = failed("push", folder, "bob/sms", "--yes")
    assert "refuses the push to bob/sms (403)" in told and "write access" in told
    assert "bob/sms" not in server.repositories


@pytest.mark.parametrize("missing", [CONFIG, ARRAYS, None])
def test_a_repository_that_is_no_graph(server: StandIn, folder: Path, missing: str | None) -> None:
    files = {} if missing is None else {n: c for n, c in contents(folder).items() if n != missing}
    server.add("alice/model", {**files, "model.safetensors": b"w"})
    told = failed("inspect", "alice/model")
    assert f"is not a graph: it has no {missing or 'config.json and no graph.safetensors'}" in told
    assert server.asked("GET", "resolve") == 0


def test_a_file_that_is_too_large_is_not_downloaded(
    server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = b"{" + b" " * MAX_JSON + b"}"
    server.add("alice/large", {**contents(folder), CONFIG: large})
    told = failed("inspect", "alice/large")
    assert f"config.json of alice/large on the Hub has {len(large):,} bytes" in told and "not downloaded" in told
    assert server.asked("GET", "resolve") == 0


@pytest.mark.parametrize("name", [ARRAYS, CONFIG])
def test_what_comes_is_checked_as_any_folder(server: StandIn, folder: Path, tmp_path: Path, name: str) -> None:
    content = bytearray((folder / name).read_bytes())
    content[-20] ^= 1
    server.add("alice/bad", {**contents(folder), name: bytes(content)})
    assert name in (told := failed("pull", "alice/bad", "--graph-path", tmp_path / "bad")) and "error: " in told
    assert not (tmp_path / "bad").exists()


def test_a_graph_of_another_teacher_is_refused(server: StandIn, folder: Path, tiny_teacher_path: Path) -> None:
    server.add("alice/sms", contents(folder))
    assert "belongs to another teacher" in failed("generate", "--model", tiny_teacher_path, "--graph", "alice/sms")


@pytest.mark.parametrize(("method", "path"), [("HEAD", "resolve"), ("GET", "graph.safetensors")])
def test_an_overloaded_hub_is_asked_again_where_its_client_does(
    server: StandIn, folder: Path, method: str, path: str
) -> None:
    server.add("alice/sms", contents(folder))
    server.faults.append(Fault(method, path, status=429 if method == "GET" else 503, times=2))
    done("pull", "alice/sms")


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault("GET", "/api/models", status=403, code="GatedRepo"), "is gated: ask for access at http"),
        (Fault("GET", "/api/models", status=429), r"asks for fewer requests just now \(429\)"),
        (Fault("GET", "/api/models", status=418), r"refused a request about alice/sms \(418\): stand-in's 418"),
        (Fault("GET", "/api/models", stalled=1.0), "cannot be reached .*timed out.* The cache has no copy"),
        (Fault("GET", "/api/models", cut=10), "broke while alice/sms was fetched"),
        (Fault("HEAD", "resolve", status=404, code="EntryNotFound"), r"alice/sms.*\(404\)"),
    ],
    ids=lambda value: "",
)
def test_every_refusal_says_what_it_is(
    server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch, fault: Fault, told: str
) -> None:
    server.add("alice/sms", contents(folder))
    if fault.stalled:
        monkeypatch.setattr(hub, "SECONDS", 0.2)
    server.faults.append(replace(fault, times=99))
    assert re.search(told, failed("inspect", "alice/sms"))


def test_a_full_disk_is_told(server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.add("alice/sms", contents(folder))

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert f"There is no room for alice/sms in {constants.HF_HUB_CACHE}" in failed("pull", "alice/sms")


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/models"), ("HEAD", "resolve"), ("GET", "resolve")])
@pytest.mark.parametrize("status", [503, 500])
def test_a_hub_that_stays_out_of_order_is_told(
    server: StandIn, folder: Path, tmp_path: Path, method: str, path: str, status: int
) -> None:
    server.add("alice/sms", contents(folder))
    server.faults.append(Fault(method, path, status=status, times=99))
    told = failed("pull", "alice/sms")
    assert f"is out of order just now ({status}): try again in some minutes" in told
    assert not (tmp_path / "sms").exists()
    server.faults.clear()
    done("pull", "alice/sms")


@pytest.mark.parametrize("where", ["create", "preupload", "lfs/objects/batch", "commit"])
def test_a_push_to_a_hub_that_is_out_of_order_leaves_nothing_half(server: StandIn, folder: Path, where: str) -> None:
    server.faults.append(Fault("POST", where, status=503, times=99))
    assert "is out of order just now (503)" in failed("push", folder, "alice/sms", "--yes")
    assert "alice/sms" not in server.repositories or server.repositories["alice/sms"].commits == {}
    server.faults.clear()
    done("push", folder, "alice/sms", "--yes")
    assert set(next(iter(server.repositories["alice/sms"].commits.values()))) == set(LIMITS)


def test_a_connection_that_is_cut_once_goes_on_from_there(server: StandIn, folder: Path, tmp_path: Path) -> None:
    server.add("alice/sms", contents(folder))
    server.faults.append(Fault("GET", "graph.safetensors", cut=1000, times=2))
    done("pull", "alice/sms")
    assert contents(tmp_path / "sms") == contents(folder)


@pytest.mark.parametrize("name", [ARRAYS, CONFIG])
def test_a_connection_that_keeps_breaking_leaves_no_folder_that_looks_whole(
    server: StandIn, folder: Path, tmp_path: Path, name: str
) -> None:
    server.add("alice/sms", contents(folder))
    server.faults.append(Fault("GET", name, cut=0, times=99))
    told = failed("pull", "alice/sms")
    assert "broke while alice/sms was fetched" in told and "run the same command again" in told
    assert not (tmp_path / "sms").exists() and not list((tmp_path / "hub").rglob("*.incomplete"))
    assert hub._cached(Repo("alice/sms"), LIMITS, (CONFIG, ARRAYS)) is None
    server.faults.clear()
    done("pull", "alice/sms")


def test_a_commit_in_the_middle_of_a_fetch_is_noticed(server: StandIn, folder: Path) -> None:
    server.add("alice/sms", contents(folder))

    def changed(*args: Any, **options: Any) -> Any:
        server.add("alice/sms", {CARD: b"newer"})
        return real(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        real = hub._patient_bar
        patch.setattr(hub, "_patient_bar", changed)
        assert "was changed while it was fetched: run the same command again" in failed("pull", "alice/sms")
    done("pull", "alice/sms")


def test_a_hub_that_cannot_be_reached(server: StandIn, folder: Path) -> None:
    server.close()
    for command, start in (("pull", "The Hub"), ("inspect", "There is no folder 'alice/sms' here. The Hub")):
        told = failed(command, "alice/sms")
        assert told.startswith(f"error: {start} at http") and "cannot be reached" in told
        assert "The cache has no copy of alice/sms" in told
    assert "cannot be reached" in failed("push", folder, "alice/sms", "--yes")


@pytest.mark.parametrize("how", ["offline", "closed", "503"])
def test_the_cache_answers_where_the_hub_does_not(
    server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    commit = server.add("alice/sms", contents(folder))
    load_graph("alice/sms")
    hub._fetched.clear()
    if how == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    elif how == "closed":
        server.close()
    else:
        server.faults.append(Fault("GET", "/api/models", status=503, times=99))
    assert load_graph("alice/sms").size == 12
    assert f"the copy of alice/sms in the cache is used ({commit[:8]})" in caplog.text
    assert load_graph(f"alice/sms@{commit}").size == 12
    with pytest.raises(DaariError, match="The cache has no copy of alice/sms@v1"):
        load_graph("alice/sms@v1")


def test_offline_without_a_copy_says_so(server: StandIn, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set, so the Hub is not asked. The cache has no copy" in failed("inspect", "alice/sms")
    assert "HF_HUB_OFFLINE is set" in failed("push", folder, "alice/sms", "--yes")
    assert server.requests == []
