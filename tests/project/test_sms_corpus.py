"""The invented corpus: same seed same bytes, disjoint splits, answers that are JSON and quote the message."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import make_sms_corpus as corpus
import pytest

from daari_mlx.ground.errors import DaariError

SPLITS = ("train", "valid", "test")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sms")
    assert corpus.main([str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, list[dict]]:
    return {
        split: [json.loads(line) for line in (folder / f"{split}.jsonl").open(encoding="utf-8")] for split in SPLITS
    }


def message(row: dict) -> str:
    return row["messages"][1]["content"]


def answer(row: dict) -> dict:
    return json.loads(row["messages"][2]["content"])


def test_the_default_size_is_enough_to_compile_and_to_hold_out(rows):
    assert len(rows["train"]) >= 600
    assert len(rows["valid"]) >= 100
    assert len(rows["test"]) >= 100


def test_same_seed_same_bytes_and_another_seed_others(folder, tmp_path):
    corpus.write_corpus(tmp_path / "again", seed=0)
    corpus.write_corpus(tmp_path / "other", seed=1)
    for split in SPLITS:
        first = (folder / f"{split}.jsonl").read_bytes()
        assert (tmp_path / "again" / f"{split}.jsonl").read_bytes() == first
        assert (tmp_path / "other" / f"{split}.jsonl").read_bytes() != first


def test_no_message_comes_twice_even_with_digits_and_case_ignored(rows):
    counts = Counter(corpus.content_key(message(row)) for split in SPLITS for row in rows[split])
    assert counts.most_common(1)[0][1] == 1


def test_content_key_ignores_digits_case_and_spacing_only():
    assert corpus.content_key("Code 123  now") == corpus.content_key("code 98 NOW")
    assert corpus.content_key("code 1 now") != corpus.content_key("code 1 later")


def test_every_split_has_every_category_and_both_labels(rows):
    assert len(corpus.CATEGORIES) >= 10
    for split in SPLITS:
        assert {answer(row)["category"] for row in rows[split]} == set(corpus.CATEGORIES)
        assert {answer(row)["label"] for row in rows[split]} == {"ham", "spam"}


def test_rows_are_chats_whose_answer_is_one_compact_json_object(rows):
    for row in rows["train"]:
        assert [m["role"] for m in row["messages"]] == ["system", "user", "assistant"]
        text, parsed = row["messages"][2]["content"], answer(row)
        assert list(parsed) == ["label", "category", "risk", "evidence"]
        assert text == json.dumps(parsed, ensure_ascii=False, separators=(",", ":"))
        assert parsed["label"] == corpus.CATEGORIES[parsed["category"]][0]
        assert 0 <= parsed["risk"] <= 99


def test_evidence_is_a_verbatim_part_of_the_message(rows):
    assert all(answer(row)["evidence"] in message(row) for row in rows["train"])
    quoted = [row for row in rows["train"] if answer(row)["evidence"]]
    assert 0.5 < len(quoted) / len(rows["train"]) < 1
    assert all(len(answer(row)["evidence"]) < len(message(row)) for row in quoted)


def test_no_slot_or_mark_is_left_in_a_message(rows):
    assert not [message(row) for row in rows["train"] if set(message(row)) & set("{}[]")]


def test_messages_have_emoji_and_other_scripts(rows):
    text = "".join(message(row) for row in rows["train"])
    for low, high in ((0x1F300, 0x1FAFF), (0x0C80, 0x0CFF), (0x0590, 0x05FF), (0x4E00, 0x9FFF)):
        assert any(low <= ord(character) <= high for character in text), hex(low)


def test_links_and_phone_numbers_are_fictional(rows):
    for row in rows["train"]:
        for word in message(row).split():
            if word.startswith("http"):
                assert word.split("/")[2].endswith(".example")
            if word.startswith("555"):
                assert word.startswith("555-01")


@pytest.mark.parametrize("n_rows", [0, -3])
def test_a_size_that_is_not_positive_is_refused(n_rows):
    with pytest.raises(DaariError, match="at least 1 row"):
        corpus.make_rows(n_rows)


def test_more_rows_than_the_templates_can_tell_apart_end_in_an_error(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CATEGORIES", {"only": ("ham", 1, ["[hello] {name}"])})
    assert corpus.main([str(tmp_path / "out"), "--rows", "50"]) == 1
    assert "ask for fewer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
