"""Which drafter the options name, and that nothing given is dropped silently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from daari_mlx.decode import stream_generate
from daari_mlx.drafters import choose_kind, make_drafter
from daari_mlx.errors import DaariError
from daari_mlx.length import Cost
from daari_mlx.lookup import LookupDrafter
from daari_mlx.model_drafter import ModelDrafter
from daari_mlx.teacher import Teacher


@pytest.mark.parametrize(
    ("kind", "graph", "draft_model", "expected"),
    [
        (None, None, None, "none"),
        (None, "g", None, "graph"),
        (None, None, "m", "model"),
        ("graph", "g", None, "graph"),
        ("model", None, "m", "model"),
        ("lookup", None, None, "lookup"),
        ("none", None, None, "none"),
        ("none", "g", "m", "none"),
    ],
)
def test_what_is_given_drafts(kind: Any, graph: Any, draft_model: Any, expected: str) -> None:
    assert choose_kind(kind, graph, draft_model) == expected


@pytest.mark.parametrize(
    ("kind", "graph", "draft_model", "message"),
    [
        (None, "g", "m", "say which one"),
        ("graph", None, None, "needs --graph"),
        ("graph", None, "m", "needs --graph"),
        ("model", None, None, "needs --draft-model"),
        ("model", "g", "m", "--graph is given"),
        ("graph", "g", "m", "--draft-model is given"),
        ("lookup", "g", None, "--graph is given"),
        ("lookup", None, "m", "--draft-model is given"),
    ],
)
def test_what_is_missing_or_unused_is_told(kind: Any, graph: Any, draft_model: Any, message: str) -> None:
    with pytest.raises(DaariError, match=message):
        choose_kind(kind, graph, draft_model)


def test_each_kind_drafts_the_same_words(
    tiny_teacher: Any, tiny_teacher_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = Teacher(*tiny_teacher, str(tiny_teacher_path))
    monkeypatch.setattr("daari_mlx.probe.cost_of", lambda _: Cost((1, 33), (1.0, 1.5)))
    monkeypatch.setattr("daari_mlx.model_drafter.measure_draft_cost", lambda *_: 0.1)
    ids = teacher.tokenizer.encode("Lunch at noon? Lunch at noon? Lunch at")
    plain = [r.token for r in stream_generate(teacher.model, teacher.tokenizer, ids, 24)]
    for kind, draft_model, cls, source in (
        ("model", str(tiny_teacher_path), ModelDrafter, "model"),
        ("lookup", None, LookupDrafter, "prompt"),
    ):
        for length in ("auto", 3, 0):
            drafter = make_drafter(kind, draft_model, teacher, length)
            assert isinstance(drafter, cls)
            found = list(
                stream_generate(teacher.model, teacher.tokenizer, ids, 24, drafter=drafter, num_draft_tokens=length)
            )
            assert [r.token for r in found] == plain
            statistics = found[-1].statistics
            assert set(statistics.sources) <= {source, "teacher"}
            assert sum(statistics.sources.values()) == statistics.tokens == len(plain)
            assert (statistics.drafting_off is None) == (length != 0)
            if kind == "model" and length == 3:
                assert statistics.acceptance_rate == 1.0
    assert make_drafter("none", None, teacher) is None
    assert make_drafter("graph", None, teacher) is None
