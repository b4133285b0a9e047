from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make_sms_corpus import make_rows
from typer.testing import CliRunner

from daari_mlx.cli import compile as cli_graph
from daari_mlx.cli import main as cli
from daari_mlx.cli import shell
from daari_mlx.ground.legible import visible

COMMANDS = (
    "compile",
    "extract",
    "generate",
    "chat",
    "annotate",
    "bench",
    "merge",
    "inspect",
    "plot",
    "probe",
    "tier",
    "push",
    "pull",
)
QUESTION = "Your visit with the eye clinic was moved to Saturday 2pm."
REFERENCE = ("--answers", "reference")  # those of the data: nobody has to answer first


def run(*args: object, stdin: str | None = None):
    return CliRunner().invoke(cli.app, [str(a) for a in args], input=stdin)


def done(*args: object, stdin: str | None = None):
    result = run(*args, stdin=stdin)
    assert result.exit_code == 0, (result.stdout, result.stderr, result.exception)
    return result


def failed(*args: object, stdin: str | None = None, code: int = 1) -> str:
    """What stderr says, behind the bars that a slow machine shows; stdout stays empty and no traceback is shown."""
    result = run(*args, stdin=stdin)
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    bars, line, told = result.stderr.partition("error: ") if code == 1 else ("", "", result.stderr)
    assert (line or code != 1) and all("|" in shown for shown in bars.replace("\n", "\r").split("\r") if shown.strip())
    return line + told


def process(*args: object, **options) -> subprocess.Popen:
    code = "from daari_mlx.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=cli_root(), **options
    )


def cli_root() -> Path:
    return Path(cli.__file__).parents[2]


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module", autouse=True)
def cache_dir(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAARI_MLX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """A folder with train and test rows that have no system prompt."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [{"messages": row["messages"][1:]} for row in make_rows(38)]
    write_rows(folder / "train.jsonl", rows[:32])
    write_rows(folder / "test.jsonl", rows[32:])
    return folder


@pytest.fixture(scope="module")
def workdir(tmp_path_factory, corpus, tiny_teacher_path) -> Path:
    folder = tmp_path_factory.mktemp("work") / "wd"
    result = done("extract", "--model", tiny_teacher_path, "--data", corpus, "--workdir", folder, *REFERENCE)
    assert result.stdout.count("\n") == 1
    assert "32 sequences" in result.stdout
    return folder


@pytest.fixture(scope="module")
def graph(tmp_path_factory, workdir) -> Path:
    folder = tmp_path_factory.mktemp("graphs") / "sms"
    result = done("compile", "--workdir", workdir, "--graph-path", folder)
    for name in ("states", "sequences", "nodes", "edges", "top-edge mass", "path reuse", "size", "seconds", "settings"):
        assert f"\n{name} " in result.stdout
    return folder


@pytest.fixture(scope="module")
def other_teacher(tmp_path_factory, tiny_teacher_path) -> Path:
    """The tiny teacher with one weight changed."""
    import mlx.core as mx

    folder = tmp_path_factory.mktemp("other") / "teacher"
    shutil.copytree(tiny_teacher_path, folder)
    weights = mx.load(str(folder / "model.safetensors"))
    weights["model.norm.weight"] = weights["model.norm.weight"] * 1.5
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


# --- the shell around the commands


def test_help_is_instant_since_it_loads_no_framework():
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom daari_mlx.cli.main import app\n"
        "pages = [['--help'], ['--version'], *([c, '--help'] for c in sys.argv[1:])]\n"
        "print([CliRunner().invoke(app, page).exit_code for page in pages])\n"
        "heavy = ('mlx.core', 'mlx_lm', 'sklearn', 'transformers', 'numpy', 'huggingface_hub')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, *COMMANDS]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cli_root()).stdout
    assert out == f"{[0] * (len(COMMANDS) + 2)}\n[]\n"


def test_every_command_is_listed_and_the_version_is_the_package_s():
    from daari_mlx import __version__

    listed = done("--help").stdout
    assert all(f"  {name} " in listed for name in COMMANDS)
    assert done("--version").stdout == f"daari-mlx {__version__}\n"


def test_the_options_of_mlx_lm_have_mlx_lm_s_names():
    from mlx_lm.generate import setup_arg_parser

    ours = done("generate", "--help").stdout.split()
    theirs = {name for action in setup_arg_parser()._actions for name in action.option_strings if name.startswith("--")}
    # what drafts here is a graph; images, quantised activations and mlx-lm's unused switch are not offered
    left_out = {"--draft-model", "--image", "--quantize-activations", "--use-default-chat-template", "--help"}
    assert theirs - left_out <= {word.rstrip(",") for word in ours}


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [
        ("--max-tokens", "0", "0: give at least 1, or -1 for no limit"),
        ("--max-tokens", "many", "'many': give at least 1"),
        ("--num-draft-tokens", "-1", "-1: give a number from 0 on, or auto"),
        ("--num-draft-tokens", "atuo", "'atuo': give a number from 0 on, or auto"),
        ("--temp", "warm", "should be a valid number"),
        ("--top-p", "2", "less than or equal to 1"),
        ("--verbose", "maybe", "give True or False"),
        ("--chat-template-config", "{", "it is no JSON"),
        ("--chat-template-config", "[1]", "it should be a JSON object"),
    ],
)
def test_a_typo_in_a_value_ends_with_usage_before_anything_is_loaded(option, value, told):
    error = failed("generate", "--model", "nowhere", option, value, code=2)
    assert error.startswith("Usage: ")
    assert option in error and told in error


@pytest.mark.parametrize(
    "args",
    [
        ["compile", "--graph-path", "g"],
        ["compile", "--graph-path", "g", "--model", "m"],
        ["compile", "--graph-path", "g", "--workdir", "w", "--layer", "2"],
        ["compile", "--graph-path", "g", "--workdir", "w", "--nodes", "some"],
        ["extract", "--model", "m", "--data", "d", "--workdir", "w", "--answers", "mine"],
        ["extract", "--model", "m", "--data", "d", "--workdir", "w", "--max-tokens", "0"],
        ["generate", "-p", "hello"],
        ["bench", "--model", "m", "--graph", "g"],
    ],
)
def test_options_that_do_not_fit_together_end_with_usage(args):
    assert failed(*args, code=2).startswith("Usage: ")


@pytest.mark.parametrize("command", ["extract", "compile"])
def test_ctrl_c_says_that_the_same_command_resumes(monkeypatch, corpus, tiny_teacher_path, tmp_path, command):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("daari_mlx.compile.extract.extract", interrupted)
    where = ["--workdir", tmp_path / "w"] + ["--graph-path", tmp_path / "g"] * (command == "compile")
    result = run(command, "--model", tiny_teacher_path, "--data", corpus, *where)
    assert (result.exit_code, result.stdout) == (130, "")
    assert "the same command resumes" in result.stderr and "Traceback" not in result.stderr


def test_ctrl_c_elsewhere_promises_nothing(monkeypatch, tiny_teacher_path):
    def interrupted(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr("daari_mlx.teacher.load.load_teacher", interrupted)
    result = run("generate", "--model", tiny_teacher_path)
    assert (result.exit_code, result.stderr.strip()) == (130, "Stopped.")


def test_an_mlx_without_a_backend_says_which_extra_to_install(monkeypatch):
    def no_backend(*_args, **_options):
        raise ImportError("libmlx.so: cannot open shared object file: No such file or directory", name="mlx.core")

    monkeypatch.setattr("daari_mlx.teacher.load.load_teacher", no_backend)
    error = failed("generate", "--model", "m")
    assert "libmlx.so" in error and "install daari-mlx[cpu]" in error
    assert not shell.lacks_backend(ImportError("No module named 'torch'", name="torch"))


def test_a_closed_pipe_is_no_news(graph):
    running = process("inspect", graph, "--json")
    running.stdout.close()  # the reader is gone before a word is written
    assert running.wait() != 0
    assert "BrokenPipe" not in running.stderr.read()
    running.stderr.close()


# --- extract and compile


def test_a_finished_extraction_is_not_done_again(workdir, corpus, tiny_teacher_path):
    shard = workdir / "shards" / "00000.safetensors"
    before = shard.stat().st_mtime_ns
    result = done("extract", "--model", tiny_teacher_path, "--data", corpus, "--workdir", workdir, "--json", *REFERENCE)
    record = json.loads(result.stdout)
    assert (record["sequences"], record["shards"], record["workdir"]) == (32, 1, str(workdir))
    assert shard.stat().st_mtime_ns == before


def test_compile_reports_its_stats_as_json_and_replaces_a_graph(workdir, tmp_path):
    for nodes in ("auto", "16"):
        result = done(
            "compile", "--workdir", workdir, "--graph-path", tmp_path / "g", "--nodes", nodes, "--json", "--force"
        )
    stats = json.loads(result.stdout)
    assert stats["nodes"] == stats["settings"]["nodes_asked"] == 16
    assert json.loads((tmp_path / "g" / "compile_stats.json").read_text()).items() <= stats.items()


def test_the_teacher_answers_unless_told_otherwise_and_what_was_cut_is_counted(corpus, tiny_teacher_path, tmp_path):
    args = ["compile", "--model", tiny_teacher_path, "--data", corpus, "--limit", "4", "-m", "3"]
    result = done(*args, "--graph-path", tmp_path / "g")
    assert "answers teacher (at most 3 tokens)" in result.stdout
    assert re.search(r"\nanswers cut +[1-4] of 4, by --max-tokens", result.stdout)
    assert f"next: daari-mlx inspect {tmp_path / 'g'} --model {tiny_teacher_path} --data" in result.stderr
    text = tmp_path / "text.jsonl"
    write_rows(text, [{"text": "Lunch at noon? Lunch at noon?"}] * 3)
    args = ["--model", tiny_teacher_path, "--data", text, "--graph-path", tmp_path / "t"]
    assert "--answers reference" in failed("compile", *args)
    assert "will it pay?" in done("compile", *args, *REFERENCE).stdout


def test_compile_from_model_and_data_leaves_no_workdir_unless_it_was_named(corpus, tiny_teacher_path, tmp_path):
    common = [
        "compile",
        "--model",
        tiny_teacher_path,
        "--data",
        corpus,
        "--limit",
        "4",
        "--answers",
        "teacher",
        "-m",
        "8",
    ]
    done(*common, "--graph-path", tmp_path / "a")
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    done(*common, "--graph-path", tmp_path / "b", "--workdir", tmp_path / "w")
    assert (tmp_path / "w" / "extract_stats.json").is_file()
    settings = json.loads((tmp_path / "b" / "config.json").read_text())["settings"]
    assert (settings["answers"], settings["max_tokens"]) == ("teacher", 8)


def test_a_compilation_that_was_stopped_resumes_from_the_folder_beside_the_graph(
    monkeypatch, corpus, tiny_teacher_path, tmp_path
):
    args = ["compile", "--model", tiny_teacher_path, "--data", corpus, "--limit", "4", "--graph-path", tmp_path / "g"]
    args += ["-m", "8"]
    with monkeypatch.context() as patch:
        patch.setattr(
            "daari_mlx.compile.compiler.compile_graph", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        assert run(*args).exit_code == 130
    shard = tmp_path / "g.work" / "shards" / "00000.safetensors"
    before = shard.stat().st_mtime_ns
    seen = []

    def look_first(path: Path) -> None:
        if path.name == "g.work":
            seen.append(shard.stat().st_mtime_ns)
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    monkeypatch.setattr("daari_mlx.ground.files.remove", look_first)
    done(*args)
    assert seen == [before]
    assert [p.name for p in tmp_path.iterdir()] == ["g"]


@pytest.mark.parametrize("command", ["compile", "merge", "tier"])
def test_what_took_an_hour_is_not_replaced_without_a_word(graph, command, corpus, tiny_teacher_path, tmp_path):
    """Refused before any work: no model of these names is there."""
    kept = shutil.copytree(graph, tmp_path / "kept") if command != "tier" else tmp_path / "kept"
    if command == "tier":
        kept.mkdir()
        for name in ("tier.json", "config.json"):
            (kept / name).write_text("{}")
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    args = {
        "compile": ["--model", "nowhere", "--data", corpus, "--graph-path", kept],
        "merge": [graph, graph, "--graph-path", kept],
        "tier": ["--model", "nowhere", "--data", corpus, "--out", kept],
    }[command]
    told = failed(command, *args)
    assert f"{kept} is a {'tier' if command == 'tier' else 'graph'} already" in told and "--force" in told
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    if command == "merge":
        told = done(command, *args, "--force")
        assert "note: 32 prompts are in both graphs" in told.stderr and "will it pay?" in told.stdout
    else:
        assert "nowhere" in failed(command, *args, "--force")


def test_the_target_is_checked_before_the_work(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    error = failed("compile", "--model", "nowhere", "--data", "nothing", "--graph-path", tmp_path)
    assert "holds other things" in error and "--graph-path" in error


def test_rows_come_from_stdin_too(corpus, tiny_teacher_path, tmp_path):
    lines = (corpus / "train.jsonl").read_text()
    args = [
        "--model",
        tiny_teacher_path,
        "--data",
        "-",
        "--workdir",
        tmp_path / "w",
        "--limit",
        "3",
        "--json",
        *REFERENCE,
    ]
    assert json.loads(done("extract", *args, stdin=lines).stdout)["sequences"] == 3


def test_bad_rows_are_named_and_can_be_left_out(tiny_teacher_path, corpus, tmp_path):
    good = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()[:2]]
    unanswered = {"messages": [{"role": "user", "content": "Anyone?"}]}
    data = write_rows(tmp_path / "rows.jsonl", [good[0], unanswered, good[1]])
    args = ["extract", "--model", tiny_teacher_path, "--data", data, "--workdir", tmp_path / "w", *REFERENCE]
    error = failed(*args)
    assert f"{data}:2: has no answer" in error and "--skip-bad-rows" in error
    result = done(*args, "--skip-bad-rows")
    assert "2 sequences" in result.stdout
    assert "skipped 1 bad row" in result.stderr and "skipped" not in result.stdout


@pytest.mark.parametrize(
    ("data", "told"),
    [("nowhere.jsonl", "There is no data at"), ("empty.jsonl", "is empty"), ("folder", "no train.jsonl in the folder")],
)
def test_missing_and_empty_data(tiny_teacher_path, tmp_path, data, told):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "folder").mkdir()
    args = ["--model", tiny_teacher_path, "--data", tmp_path / data]
    assert told in failed("extract", *args, "--workdir", tmp_path / "w")
    assert told in failed("compile", *args, "--graph-path", tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_a_workdir_of_another_teacher(workdir, corpus, other_teacher, tiny_teacher_path):
    error = failed("extract", "--model", other_teacher, "--data", corpus, "--workdir", workdir, *REFERENCE)
    assert "teacher" in error and str(tiny_teacher_path) in error and str(other_teacher) in error


def test_a_workdir_that_was_never_filled(tmp_path):
    assert "finished extraction" in failed("compile", "--workdir", tmp_path, "--graph-path", tmp_path / "g")


def test_a_missing_model():
    error = failed("generate", "--model", "nowhere/at/all", "-p", "hi")
    assert "There is no model at 'nowhere/at/all'" in error


def test_what_the_system_refuses_is_told_with_the_file(workdir, tmp_path):
    (tmp_path / "file").write_text("")
    error = failed("compile", "--workdir", workdir, "--graph-path", tmp_path / "file" / "g")
    assert str(tmp_path / "file") in error


# --- generate


def test_generate_says_what_mlx_lm_says_and_prints_both_figures(graph, tiny_teacher, tiny_teacher_path):
    from mlx_lm import generate

    model, tokenizer = tiny_teacher
    ids = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], add_generation_prompt=True)
    plain = generate(model=model, tokenizer=tokenizer, prompt=ids, max_tokens=60)
    common = ["generate", "--model", tiny_teacher_path, "-p", QUESTION, "--graph", graph, "-m", "60"]
    shown = done(*common, "--num-draft-tokens", "4")
    assert shown.stdout.startswith(f"{'=' * 10}\n{plain}\n{'=' * 10}\nPrompt: {len(ids)} tokens, ")
    assert "tokens per forward" in shown.stdout and "Peak memory" in shown.stdout
    only = done(*common, "--verbose", "False")
    assert only.stdout == plain + "\n"
    record = json.loads(done(*common, "--json").stdout)
    assert record["text"] == plain
    assert record["tokens"] == len(record["token_ids"])
    assert record["calls"] < record["tokens"], "nothing was drafted"
    assert len(record["token_sources"]) == record["tokens"] and record["drafting_off"] is None
    counted = {name: record["token_sources"].count(name) for name in record["token_sources"]}
    assert counted == record["sources"] and record["tokens"] - counted["teacher"] == record["accepted"] > 0


def test_generate_ends_at_a_stop(graph, tiny_teacher_path):
    common = ["generate", "--model", tiny_teacher_path, "-p", QUESTION, "--graph", graph, "--num-draft-tokens", "6"]
    whole = json.loads(done(*common, "--json").stdout)
    stop = whole["text"][9:14]
    cut = json.loads(done(*common, "--json", "--stop", "never\\n", "--stop", stop).stdout)
    assert cut["text"] == whole["text"][: whole["text"].index(stop)] and cut["finish_reason"] == "stop"
    assert cut["tokens"] == len(cut["token_ids"]) < len(whole["token_ids"])
    assert cut["token_ids"] == whole["token_ids"][: cut["tokens"]]
    assert "none of them empty" in failed(*common, "--stop", "")


def test_generate_tells_why_nothing_is_drafted(graph, tiny_teacher_path):
    common = ["generate", "--model", tiny_teacher_path, "-p", "hello", "-m", "3"]
    assert "Drafting: off: no graph was given" in done(*common).stdout
    off = done(*common, "--graph", graph, "--num-draft-tokens", "0", "--verbose", "F")
    assert "drafting was off: num_draft_tokens is 0" in off.stderr
    assert "drafting" not in off.stdout


def test_the_prompt_comes_from_stdin_and_may_start_the_answer(tiny_teacher_path):
    common = ["generate", "--model", tiny_teacher_path, "-m", "6", "--json"]
    typed, piped = done(*common, "-p", QUESTION), done(*common, "-p", "-", stdin=QUESTION)
    assert json.loads(typed.stdout)["token_ids"] == json.loads(piped.stdout)["token_ids"]
    started = json.loads(done(*common, "-p", QUESTION, "--prefill-response", '{"label":').stdout)
    assert started["prompt_tokens"] > json.loads(typed.stdout)["prompt_tokens"]
    assert started["text"] and "label" not in started["text"]


@pytest.mark.parametrize("command", ["compile", "extract", "bench", "generate", "chat"])
def test_a_seed_that_no_generator_takes_is_refused_at_once(command):
    for seed in (-1, 2**64):
        assert "Invalid value for '--seed'" in failed(command, "--seed", seed, code=2)


def test_the_seed_fixes_what_is_sampled(tiny_teacher_path):
    common = ["generate", "--model", tiny_teacher_path, "-p", "hello", "-m", "24", "--temp", "1.5", "--json"]
    texts = [json.loads(done(*common, "--seed", seed).stdout)["text"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


def test_an_extra_end_token_ends_the_answer(tiny_teacher_path):
    common = ["generate", "--model", tiny_teacher_path, "-p", QUESTION, "--json"]
    whole = json.loads(done(*common).stdout)
    third = whole["token_ids"][2]
    cut = json.loads(done(*common, "--extra-eos-token", third).stdout)
    assert cut["token_ids"] == whole["token_ids"][:3]
    assert cut["finish_reason"] == "stop"
    assert "'no such token'" in failed(*common, "--extra-eos-token", "no such token")


def test_a_saved_prompt_cache_names_its_model_and_is_gone_on_from(tiny_teacher, tiny_teacher_path, tmp_path):
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache, save_prompt_cache

    model, tokenizer = tiny_teacher
    start = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Remember this."}], add_generation_prompt=False, continue_final_message=True
    )
    cache = make_prompt_cache(model)
    model(mx.array([start]), cache=cache)
    file = tmp_path / "cache.safetensors"
    save_prompt_cache(str(file), cache, {"model": str(tiny_teacher_path), "tokenizer_config": "{}"})
    args = ["generate", "--prompt-cache-file", file, "-p", " And this.", "-m", "5", "--json"]
    record = json.loads(done(*args).stdout)
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Remember this. And this."}], add_generation_prompt=True
    )
    assert record["prompt_tokens"] == len(whole) - len(start)
    direct = done("generate", "--model", tiny_teacher_path, "-p", "Remember this. And this.", "-m", "5", "--json")
    assert record["token_ids"] == json.loads(direct.stdout)["token_ids"]
    assert "was made with" in failed(*args, "--model", "other")
    file.write_bytes(b"junk")
    assert "no prompt cache" in failed(*args)


@pytest.mark.parametrize("stdin", ["", " \n"])
def test_an_empty_prompt(tiny_teacher_path, stdin):
    assert "The prompt is empty" in failed("generate", "--model", tiny_teacher_path, "-p", "-", stdin=stdin)


def test_a_prompt_longer_than_the_context_is_answered_as_plain_does_and_not_drafted(graph, tiny_teacher_path):
    common = ["generate", "--model", tiny_teacher_path, "-p", "-", "-m", "4", "--json"]
    plain, ours = (done(*common, *more, stdin="word " * 3000) for more in ([], ["--graph", graph]))
    record = json.loads(ours.stdout)
    assert record["token_ids"] == json.loads(plain.stdout)["token_ids"] and record["drafted"] == 0
    assert record["drafting_off"] == "the teacher's context of 2048 tokens is full" in ours.stderr


def test_options_of_the_chat_template_are_not_dropped_silently(tiny_teacher_path):
    args = ["generate", "--model", tiny_teacher_path, "-p", "hi", "--ignore-chat-template"]
    assert "--system-prompt needs a chat template" in failed(*args, "--system-prompt", "Be brief.")


def test_a_graph_of_another_teacher(graph, other_teacher, tiny_teacher_path):
    error = failed("generate", "--model", other_teacher, "--graph", graph, "-p", "hi", "--json")
    assert "another teacher" in error and str(tiny_teacher_path) in error and "daari-mlx compile" in error


def test_a_truncated_graph_is_told_before_the_model_is_loaded(graph, tmp_path):
    broken = tmp_path / "g"
    shutil.copytree(graph, broken)
    arrays = (broken / "graph.safetensors").read_bytes()
    (broken / "graph.safetensors").write_bytes(arrays[: len(arrays) // 2])
    for command in (["generate"], ["chat"], ["bench", "--data", __file__]):
        assert "truncated" in failed(*command, "--model", "nowhere", "--graph", broken)
    assert "truncated" in failed("inspect", broken)
    assert "There is no graph at" in failed("inspect", tmp_path / "none")


# --- bench, inspect, probe


def test_bench_prints_identity_and_ratio_and_appends_its_record(graph, corpus, tiny_teacher_path, tmp_path):
    out = tmp_path / "results.jsonl"
    common = ["bench", "--model", tiny_teacher_path, "--graph", graph, "--data", corpus, "--out", out]
    common += ["-m", "12", "--num-draft-tokens", "4"]
    shown = done(*common, "-n", "2")
    assert "2 of 2 answers have the tokens of plain mlx-lm" in shown.stdout
    for name in ("wall clock", "tokens per forward", "acceptance", "time spent drafting", "device", "versions"):
        assert f"\n{name}" in shown.stdout
    record = json.loads(done(*common, "-n", "1", "--json").stdout)
    assert record["ok"] and record["n"] == 1
    assert [json.loads(line)["n"] for line in out.read_text().splitlines()] == [2, 1]
    error = failed(*common, "--split", "train")
    assert "--allow-overlap" in error


@pytest.mark.parametrize("more", [[], ["--concurrency", "1,2"], ["--drafter", "pair", "--draft-model"]])
@pytest.mark.parametrize("fault", ["overlap", "another teacher"])
def test_bench_refuses_what_it_cannot_measure_before_it_times_anything(
    monkeypatch, graph, corpus, tiny_teacher_path, other_teacher, more, fault
):
    from daari_mlx.cost import machine, probe
    from daari_mlx.draft import model as draft_model

    def timed(*_args, **_options):
        raise AssertionError("something was timed")

    for module, name in ((machine, "measured_cost"), (machine, "look_at"), (probe, "measure")):
        monkeypatch.setattr(module, name, timed)
    monkeypatch.setattr(draft_model, "measure_draft_cost", timed)
    words = {
        "overlap": (tiny_teacher_path, "train", "--allow-overlap"),
        "another teacher": (other_teacher, "test", "another teacher"),
    }
    teacher, split, told = words[fault]
    more = [*more, tiny_teacher_path] if more[:1] == ["--drafter"] else more
    assert told in failed("bench", "--model", teacher, "--graph", graph, "--data", corpus, "--split", split, *more)


def test_bench_prints_failed_rows_as_failed_and_ends_with_1(monkeypatch, graph, corpus, tiny_teacher_path):
    import dataclasses

    from daari_mlx.measure import bench, records

    honest = bench.run_bench

    def one_differs(*args, **options):
        record = honest(*args, **options)
        broken = dataclasses.replace(record.rows[0], verdict=records.FAILED)
        return dataclasses.replace(record, rows=(broken, *record.rows[1:]))

    monkeypatch.setattr(bench, "run_bench", one_differs)
    args = ["--model", tiny_teacher_path, "--graph", graph, "--data", corpus]
    result = run("bench", *args, "-n", "1", "-m", "2", "--num-draft-tokens", "1")
    assert result.exit_code == 1
    assert result.stdout.startswith(f"FAILED  {corpus / 'test.jsonl'}:1")
    assert "1 FAILED" in result.stdout and "no speed-up" in result.stdout


def busiest_edge(view: dict) -> dict:
    return view["busiest"][0]["edges"][0]


def test_inspect_shows_the_busiest_nodes_in_words(graph, tiny_teacher, tiny_teacher_path):
    _, tokenizer = tiny_teacher
    view = json.loads(done("inspect", graph, "--json", "--top", "3").stdout)
    support = [node["support"] for node in view["busiest"]]
    assert len(support) == 3 and support == sorted(support, reverse=True)
    assert view["prompts"] == 32
    assert busiest_edge(view)["text"] == tokenizer.decode([busiest_edge(view)["token"]])
    shown = done("inspect", graph).stdout
    assert f"teacher          {tiny_teacher_path}" in shown and "top-edge mass" in shown
    assert f" {visible(busiest_edge(view)['text'])} " in shown


def test_inspect_without_the_teacher_shows_token_ids(graph, tiny_teacher_path, tmp_path):
    from daari_mlx.graph.artifact import seal

    moved = tmp_path / "g"
    shutil.copytree(graph, moved)
    config = json.loads((moved / "config.json").read_text())
    config["teacher"]["source"] = "someone/else"
    (moved / "config.json").write_text(json.dumps({**config, "config_sha256": seal(config)}))
    view = json.loads(done("inspect", moved, "--json").stdout)
    assert busiest_edge(view)["text"] is None
    shown = done("inspect", moved)
    assert "token ids only" in shown.stderr
    assert f" #{busiest_edge(view)['token']} " in shown.stdout
    named = done("inspect", moved, "--model", tiny_teacher_path)
    assert f" #{busiest_edge(view)['token']} " not in named.stdout and named.stderr == ""
    assert "No tokenizer could be loaded" in failed("inspect", moved, "--model", tmp_path)


def test_probe_measures_and_says_where_it_was_kept_or_why_not(monkeypatch, tiny_teacher_path):
    monkeypatch.setattr("daari_mlx.cost.probe.MAX_SPREAD", 1e9)  # a busy machine must not decide this test
    record = json.loads(done("probe", "--model", tiny_teacher_path, "--repeats", "3", "--json").stdout)
    assert record["rows"] == list(range(1, 34)) and len(record["seconds"]) == 33
    assert Path(record["kept"]).is_file()
    assert set(record["blas"]) == {"name", "path", "loaded", "reason"}
    single = json.loads(done("probe", "--model", tiny_teacher_path, "--repeats", "1", "--json").stdout)
    assert single["kept"] is None, "one repeat says nothing of how much times scatter"
    monkeypatch.setattr("daari_mlx.cost.probe.MAX_SPREAD", -1.0)
    shown = done("probe", "--model", tiny_teacher_path, "--repeats", "1").stdout
    assert "T(m)/T(1)" in shown and " 33 " in shown and "not kept: too noisy" in shown


def test_the_options_that_compile_refuses_without_a_model_exist():
    command = next(c for c in cli.app.registered_commands if c.callback is cli_graph.compile)
    assert command.cls is shell.Command
    import inspect

    assert set(cli_graph.EXTRACTION.split()) < set(inspect.signature(cli_graph.compile).parameters)


def test_the_stats_of_a_graph_say_how_it_was_made(graph):
    stats = json.loads((Path(graph) / "compile_stats.json").read_text())
    assert stats["command"].split()[0] == "daari-mlx" and stats["settings"]["corpus"]
