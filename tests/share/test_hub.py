"""Graphs on the Hub, against a stand-in for its HTTP API on loopback: there and back, and what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graphs import Compiled, random_graph
from hub_graphs import TEACHER, contents, done, failed
from hub_stand_in import TOKEN, Fault, StandIn
from huggingface_hub import constants
from test_artifact import COUNTED, assert_same

from daari_mlx.graph.artifact import ARRAYS, CARD, CONFIG, LIMITS, MAX_JSON, attach, read_stats, save_graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.share import hub
from daari_mlx.share.find import graph_folder, load_graph
from daari_mlx.share.repo import Repo, parse_repo

pytest_plugins = ["hub_fixtures"]


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
    assert read_stats(graph_folder("alice/sms"))["nodes"] == 12
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
    assert "sms holds a graph that is not the one of alice/sms: name another --graph-path" in failed(
        "pull", "alice/sms"
    )


def test_a_pull_replaces_a_copy_of_itself_and_another_graph_only_by_force(
    server: StandIn, folder: Path, tmp_path: Path
) -> None:
    done("push", folder, "alice/sms", "--yes")
    for _ in range(2):
        done("pull", "alice/sms")
    save_graph(random_graph(4, teacher=TEACHER), tmp_path / "sms", COUNTED)
    mine = contents(tmp_path / "sms")
    for damaged in (False, True):
        if damaged:
            mine[CONFIG] = b"{"
            (tmp_path / "sms" / CONFIG).write_bytes(mine[CONFIG])
        assert "or replace it with --force" in failed("pull", "alice/sms")
        assert contents(tmp_path / "sms") == mine
    done("pull", "alice/sms", "--force")
    assert load_graph(tmp_path / "sms").vocab_size == 60


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
    assert attach(load_graph("alice/tiny"), model, tokenizer).size == compiled.graph.size
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
    nothing = r"There is no graph at .*: give the folder .* or a Hub repository as user"
    with pytest.raises(DaariError, match=nothing if name else "The name of the graph cannot be used: it is empty"):
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
    command = [sys.executable, "-c", "from daari_mlx.cli.main import main; main()", "pull", "alice/sms"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    assert contents(tmp_path / "sms") == contents(folder)


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
    assert (
        "There is no folder 'alice/absent' here, so it was looked for on the Hub. The Hub at http" in told
        and "(404). Check the name" in told
    )
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
    for command, start in (
        ("pull", "The Hub"),
        ("inspect", "There is no folder 'alice/sms' here, so it was looked for on the Hub. The Hub"),
    ):
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
