"""T(m) as it is measured, kept and found again; what cannot be trusted is not kept."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn
import pytest
from mlx_lm.tuner.utils import linear_to_lora_layers
from zoo import CONFIGS, build

from daari_mlx.cost import probe
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.batch_probe import POINTS
from daari_mlx.cost.length import Cost
from daari_mlx.cost.machine import batch_cost_of, measured_cost
from daari_mlx.cost.probe import MAX_SPREAD, ProbeRecord, cache_dir, key_of, load, measure, save


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DAARI_MLX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model() -> nn.Module:
    return build("llama")


def record_of(model: nn.Module, **changes: Any) -> ProbeRecord:
    record = ProbeRecord(key_of(model), (1, 2, 4), (0.01, 0.012, 0.03), 0.1, 256, 3)
    return replace(record, **changes)


def kept_files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_a_record_comes_back(model: nn.Module, folder: Path) -> None:
    assert load(model) is None
    path = save(record_of(model))
    assert path is not None and kept_files(folder) == [path]
    assert load(model) == record_of(model)
    assert load(build("llama")) == record_of(model), "the same model, loaded anew"
    assert load(build("qwen3")) is None
    assert load(model).cost == Cost((1, 2, 4), (1.0, 1.2, 3.0), 256)  # type: ignore[union-attr]


def test_a_noisy_record_is_not_kept_and_replaces_nothing(model: nn.Module, folder: Path) -> None:
    noisy = record_of(model, spread=MAX_SPREAD * 1.01, seconds=(0.01, 0.5, 0.1))
    assert noisy.noisy and save(noisy) is None and kept_files(folder) == []
    save(record_of(model))
    assert save(noisy) is None and load(model) == record_of(model)
    newer = record_of(model, seconds=(0.02, 0.03, 0.04))
    save(newer)
    assert load(model) == newer


DAMAGES: dict[str, bytes | dict[str, Any]] = {
    "empty": b"",
    "truncated": b'{"key": {',
    "no JSON": b"\xff\xfe\x00",
    "deep": b"[" * 100_000,
    "a list": b"[1, 2]",
    "null": b"null",
    "a number": b"3",
    "nothing in it": b"{}",
    "no rows": {"rows": []},
    "rows that are none": {"rows": 3},
    "rows of text": {"rows": ["1", "2", "4"]},
    "rows that do not start at 1": {"rows": [2, 3, 4]},
    "fewer times": {"seconds": [0.01]},
    "times of text": {"seconds": ["a", "b", "c"]},
    "no time at all": {"seconds": [0, 0, 0]},
    "negative times": {"seconds": [0.01, -0.02, 0.03]},
    "times that are none": {"seconds": [0.01, float("nan"), 0.03]},
    "endless times": {"seconds": [0.01, float("inf"), 0.03]},
    "an entry more": {"more": 1},
    "huge": {"seconds": [10**400, 1, 1]},
    "longer contexts that are none": {"longer": 3},
    "longer contexts of text": {"longer": ["abc"]},
    "longer contexts that fall": {"longer": [[2048, [1, 4], [0.01, 0.05]], [1024, [1, 4], [0.01, 0.05]]]},
    "shorter contexts": {"longer": [[128, [1, 4], [0.01, 0.05]]]},
    "fewer times in a longer context": {"longer": [[2048, [1, 4], [0.01]]]},
    "other rows in a longer context": {"longer": [[2048, [1, 3], [0.01, 0.02]]]},
    "no time in a longer context": {"longer": [[2048, [1, 4], [0.01, 0]]]},
    "no number in a longer context": {"longer": [[2048, [1, 4], [0.01, float("nan")]]]},
}


@pytest.mark.parametrize("name", sorted(DAMAGES))
def test_a_damaged_record_is_ignored_and_replaced(model: nn.Module, name: str) -> None:
    path = save(record_of(model))
    assert path is not None
    damage = DAMAGES[name]
    content = damage if isinstance(damage, bytes) else json.dumps(json.loads(path.read_text()) | damage).encode()
    path.write_bytes(content)
    assert load(model) is None
    save(record_of(model))
    assert load(model) == record_of(model)


def test_a_folder_that_cannot_be_written_is_no_failure(model: nn.Module, folder: Path) -> None:
    folder.write_text("a file")
    assert save(record_of(model)) is None and load(model) is None


def test_the_key_tells_apart_what_the_times_depend_on(model: nn.Module) -> None:
    key = key_of(model)
    assert {"chip", "device", "structure", "quantisation", "mlx", "blas", "threads"} == set(key)
    assert all(key[k] for k in ("chip", "device", "mlx", "blas"))
    assert key_of(build("llama", seed=1)) == key, "other weights of the same shapes take the same time"
    quantised = build("llama")
    nn.quantize(quantised, group_size=32, bits=4)
    assert key_of(quantised) != key and key_of(build("qwen3")) != key


def test_the_folder_is_the_users_own_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("DAARI_MLX_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "daari-mlx"
    monkeypatch.setenv("DAARI_MLX_CACHE", "")
    assert cache_dir() == tmp_path / ".cache" / "daari-mlx"


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_every_kind_of_cache_can_be_measured(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a block are measured on the same context each time, also where a cache cannot be trimmed."""
    starts: list[int] = []
    forward = probe._forward

    def watching(model: nn.Module, cache: list[Any], rows: int) -> None:
        if rows in (1, 3, 9):
            starts.append(max((getattr(c, "offset", 0) for c in cache), default=0))
        forward(model, cache, rows)

    monkeypatch.setattr(probe, "_forward", watching)
    record = measure(build(name), rows=(1, 3, 9), repeats=2, context=20)
    assert record.rows == (1, 3, 9) and len(record.seconds) == 3 and min(record.seconds) > 0
    assert record.cost(1) == 1.0 and record.spread >= 0 and (record.context, record.repeats) == (20, 2)
    assert set(starts) == ({0} if name == "mamba2" else {20}), "mamba2's cache counts nothing"


def test_a_short_context_is_respected(tiny_teacher: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "context_length", lambda _: 40)
    assert measure(tiny_teacher[0], rows=(1, 8), repeats=1).context == 31


def test_a_cost_is_measured_once(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kept for other processes when clean; a noisy one still serves this process, or each answer would measure anew."""
    calls = 0

    def measured(model: nn.Module, **_: Any) -> ProbeRecord:
        nonlocal calls
        calls += 1
        return record_of(model, spread=spread)

    monkeypatch.setattr(probe, "measure", measured)
    spread = 2.0
    for _ in range(3):
        assert measured_cost(model)(2) == pytest.approx(1.2)
    assert calls == 1 and load(model) is None
    assert capsys.readouterr().err.count("scattered too much to be kept") == 1
    spread = 0.1
    again = build("llama")
    measured_cost(again)
    assert calls == 2 and load(model) is not None, "a later clean run is kept"
    assert measured_cost(build("llama"))(2) == pytest.approx(1.2) and calls == 2


def test_another_kind_of_model_has_another_cost(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantised or adapted after it was measured, or a copy that is; other weights or another scale cost the same."""
    measured: list[nn.Module] = []

    def measure_anew(model: nn.Module, **_: Any) -> ProbeRecord:
        measured.append(model)
        return record_of(model, seconds=(0.01, 0.01 + 0.001 * len(measured), 0.03), spread=2.0)

    monkeypatch.setattr(probe, "measure", measure_anew)
    first = measured_cost(model)
    other: Any = copy.deepcopy(model)
    nn.quantize(other, group_size=32, bits=4)
    assert measured_cost(other) != first and measured == [model, other]
    linear_to_lora_layers(model, 2, {"rank": 2, "scale": 1.0, "dropout": 0.0})
    second = measured_cost(model)
    assert second != first and len(measured) == 3
    model.layers[2].self_attn.q_proj.scale = 0.0
    model.model.norm.weight = model.model.norm.weight * 2
    assert measured_cost(model) is second and len(measured) == 3


def test_what_changes_the_time_of_a_forward_is_in_the_key(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    save(record_of(model))
    assert load(model) is not None
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert load(model) is None
    assert key_of(model)["device"] in ("cpu", "gpu")


# --- longer contexts


def test_longer_contexts_come_back(model: nn.Module) -> None:
    record = record_of(model, longer=((2048, (1, 4), (0.02, 0.05)), (8192, (1, 4), (0.03, 0.20))))
    save(record)
    assert load(model) == record
    cost = record.cost
    assert cost == Cost((1, 2, 4), (1.0, 1.2, 3.0), 256, cost.longer) and [c for c, _ in cost.longer] == [2048, 8192]
    # what 1 and 4 rows cost more at 2048 tokens is 10 and 20 ms: a third of the way, 13.3 ms for 2 rows
    assert cost.longer[0][1] == pytest.approx((2.0, 1.2 + 1.0 + 1 / 3, 5.0))


def test_a_longer_context_is_never_cheaper(model: nn.Module) -> None:
    assert record_of(model, longer=((2048, (1, 4), (0.005, 0.02)),)).cost.longer == ((2048, (1.0, 1.2, 3.0)),)


def test_a_record_of_before_there_were_longer_contexts_is_measured_anew(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(record_of(model))
    assert path is not None
    old = json.loads(path.read_text())
    del old["longer"]
    path.write_text(json.dumps(old))
    assert load(model) is None
    newer = record_of(model, longer=((2048, (1, 4), (0.02, 0.05)),))
    monkeypatch.setattr(probe, "measure", lambda *_, **__: newer)
    assert measured_cost(model) == newer.cost and load(model) == newer


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_rows_in_longer_contexts_are_measured_on_such_a_cache(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    starts: dict[int, set[int]] = {}
    forward = probe._forward

    def watching(model: nn.Module, cache: list[Any], rows: int) -> None:
        starts.setdefault(rows, set()).add(max((getattr(c, "offset", 0) for c in cache), default=0))
        forward(model, cache, rows)

    monkeypatch.setattr(probe, "_forward", watching)
    monkeypatch.setattr(probe, "LONG_SECONDS", 1e9)
    record = measure(build(name), rows=(1, 3, 4, 7), repeats=1, context=20, longer=(50, 90))
    assert [(c, rows) for c, rows, _ in record.longer] == [(50, (1, 4, 7)), (90, (1, 4, 7))]
    assert starts == {1: {20, 50, 90}, 3: {20}, 4: {20, 50, 90}, 7: {20, 50, 90}}
    assert record.cost.at(10_000)(4) > 0


def test_longer_contexts_that_model_or_time_do_not_allow_are_left_out(
    tiny_teacher: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "context_length", lambda _: 100)
    monkeypatch.setattr(probe, "LONG_SECONDS", 1e9)
    record = measure(tiny_teacher[0], rows=(1, 8), repeats=1, context=30, longer=(60, 91, 92))
    assert [c for c, _, _ in record.longer] == [60, 91]
    monkeypatch.setattr(probe, "LONG_SECONDS", 0.0)
    assert measure(tiny_teacher[0], rows=(1, 8), repeats=1, context=30, longer=(60, 91)).longer == ()


def test_batches_are_measured_and_kept_beside_the_curve(model: nn.Module) -> None:
    record = measure(model, rows=(1, 2, 4), repeats=3, batches=True)
    assert [(b, m) for b, m, _ in record.batches] == list(POINTS) and all(s > 0 for _, _, s in record.batches)
    kept = replace(record, spread=0.1)
    save(kept)
    assert load(model) == kept
    cost = batch_cost_of(model)
    for rows, columns, seconds in kept.batches:
        assert cost(rows, columns) == pytest.approx(seconds / kept.seconds[0])


def test_a_model_whose_rows_cannot_share_has_no_batches(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "why_alone", lambda _: "a reason")
    assert measure(model, rows=(1, 2), repeats=3, batches=True).batches == ()


def test_what_rounds_find_corrects_what_is_foretold_for_rounds_like_them() -> None:
    cost = BatchCost(Cost((1, 64), (1.0, 64.0)), [(4, 1, 2.0), (4, 8, 40.0)])
    assert [cost(4, m) for m in (1, 8)] == [2.0, 40.0] and 2.0 < cost(4, 4) < 40.0
    assert cost(8, 1) == pytest.approx(8 * (0.5 + 0.75 / 7)), "8 positions: a seventh of the way from 4 to 32"
    for _ in range(60):
        cost.learn(4, 1, 0.2)
        cost.learn(4, 8, 8.0)  # twice as dear as it was foretold, beside the former
    assert cost(4, 8) / cost(4, 1) == pytest.approx(40.0, rel=0.1)
    assert cost(8, 8) == pytest.approx(8 * 8 * 40.0 / 32), "other rows keep what is foretold"
