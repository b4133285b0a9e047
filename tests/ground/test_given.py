"""Names, texts and numbers given to public functions: what nobody can have meant is refused before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx_lm
import numpy as np
import pytest
from graphs import full_graph

from daari_mlx import SpecEngine, SpeculativeModel, compile_graph, generate, load_graph, save_graph, stream_generate
from daari_mlx.compile.options import ExtractOptions
from daari_mlx.compile.update import merge_graphs, update_graph
from daari_mlx.compile.workdir import Workdir
from daari_mlx.cost.probe import measure
from daari_mlx.decode.choose import graph_drafter, lookup_drafter
from daari_mlx.decode.options import CacheOptions, Length, Sampling
from daari_mlx.draft.drafter import GraphDrafter
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.draft.model import ModelDrafter, model_drafter
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_draft_length, check_max_tokens, check_name, check_text, check_whole
from daari_mlx.measure.bench import run_bench
from daari_mlx.measure.streams import record
from daari_mlx.share.publish import prepare, pull
from daari_mlx.show.plots.style import check_picture
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.text.data import read_prompts, read_sequences
from daari_mlx.tier.make import make_tier
from daari_mlx.tier.options import TierOptions

Call = Callable[..., Any]
HALF = "a lone \udce9"


@pytest.fixture
def teacher(tiny_teacher: tuple[Any, Any], tiny_teacher_path: Path) -> Teacher:
    return Teacher(*tiny_teacher, str(tiny_teacher_path))


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The current folder, which an empty path names, stays as it is, and nothing is loaded from it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def load(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr(mlx_lm, "load", load)
    yield
    assert list(folder.iterdir()) == []


NAMES: dict[str, Call] = {
    "load_graph": lambda t: load_graph(""),
    "save_graph": lambda t: save_graph(full_graph(), "", {}),
    "SpecEngine, model": lambda t: SpecEngine(""),
    "SpecEngine, graph": lambda t: SpecEngine(t.model, "", tokenizer=t.tokenizer),
    "SpecEngine, adapter": lambda t: SpecEngine(t.source, adapter_path=""),
    "SpeculativeModel": lambda t: SpeculativeModel("", t),
    "stream_generate": lambda t: next(stream_generate(t.model, t.tokenizer, "hi", graph="")),
    "generate": lambda t: generate(t.model, t.tokenizer, "hi", graph=""),
    "load_teacher": lambda t: load_teacher(""),
    "read_prompts": lambda t: read_prompts("", t.tokenizer),
    "read_sequences": lambda t: read_sequences("", t.tokenizer),
    "Workdir": lambda t: Workdir(""),
    "make_tier": lambda t: make_tier(t, [], "", TierOptions()),
    "pull": lambda t: pull("user/repo", ""),
    "prepare": lambda t: prepare("", "user/repo"),
    "check_picture": lambda t: check_picture(""),
}


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_name_is_none(name: str, teacher: Teacher) -> None:
    with pytest.raises(DaariError, match=r"it is empty|as '': give a file"):
        NAMES[name](teacher)


NUMBERS: dict[str, Call] = {  # taken by the value that is none
    "stream_generate": lambda t, n: next(stream_generate(t.model, t.tokenizer, "hi", num_draft_tokens=n)),
    "SpecEngine": lambda t, n: SpecEngine(t.model, tokenizer=t.tokenizer, num_draft_tokens=n),
    "SpeculativeModel": lambda t, n: SpeculativeModel(t, t, block_size=n),
    "graph_drafter": lambda t, n: graph_drafter(full_graph(), t.model, t.tokenizer, n),
    "lookup_drafter": lambda t, n: lookup_drafter(t, n),
    "model_drafter": lambda t, n: model_drafter(t, t, n),
    "GraphDrafter": lambda t, n: GraphDrafter(full_graph(), num_draft_tokens=n),
    "LookupDrafter": lambda t, n: LookupDrafter(num_draft_tokens=n),
    "ModelDrafter": lambda t, n: ModelDrafter(t.model, num_draft_tokens=n),
    "run_bench": lambda t, n: run_bench(t, None, [], num_draft_tokens=n),
    "run_bench, max_tokens": lambda t, n: run_bench(t, None, [object()], max_tokens=n),  # type: ignore[list-item]
    "record": lambda t, n: record(t, [object()], ["final"], n),  # type: ignore[list-item]
    "read_prompts": lambda t, n: read_prompts(__file__, t.tokenizer, limit=n),
    "compile_graph, nodes": lambda t, n: compile_graph(Workdir("none"), nodes=n),
    "compile_graph, bytes": lambda t, n: compile_graph(Workdir("none"), max_bytes=n),
    "compile_graph, seed": lambda t, n: compile_graph(Workdir("none"), seed=n),
    "update_graph": lambda t, n: update_graph(full_graph(), Workdir("none"), max_bytes=n),
    "merge_graphs": lambda t, n: merge_graphs(full_graph(), full_graph(), max_bytes=n),
    "measure": lambda t, n: measure(t.model, repeats=n),
    **{f"Extract {k}": lambda t, n, k=k: ExtractOptions(**{k: n}) for k in ("max_tokens", "dimensions", "seed")},
    **{
        f"Tier {k}": lambda t, n, k=k: TierOptions(**{k: n})
        for k in ("bits", "group_size", "drop_layers", "max_tokens")
    },
    **{
        f"Cache {k}": lambda t, n, k=k: CacheOptions(**{k: n})
        for k in ("max_kv_size", "prefill_step_size", "kv_bits", "kv_group_size", "quantized_kv_start")
    },
    "Length": lambda t, n: Length(max_tokens=n),
    **{f"Sampling {k}": lambda t, n, k=k: Sampling(**{k: n}) for k in ("top_k", "min_tokens_to_keep", "seed")},
}
REAL = ("temp", "top_p", "min_p", "xtc_probability", "xtc_threshold")


@pytest.mark.parametrize("value", [True, -2, "x", [1]], ids=repr)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_number_of_things_is_refused(name: str, value: Any, teacher: Teacher) -> None:
    with pytest.raises(DaariError, match=r" is ('x'|'x': .*|True|\[1\]|-2).*: (give|MLX quantises)"):
        NUMBERS[name](teacher, value)


@pytest.mark.parametrize("name", REAL)
def test_what_is_no_real_number_is_refused(name: str) -> None:
    for value in (float("inf"), float("nan"), -0.1, True, "0.5"):
        with pytest.raises(DaariError, match=rf"^{name} is .*: give "):
            Sampling(**{name: value})
    Sampling(**{name: 0.5}), Sampling(**{name: np.float32(0.25)}), Sampling(**{name: 0})


def test_what_is_meant_is_taken() -> None:
    for number in (1, np.int64(3)):
        check_whole("n", number, 1)
    for value in ("auto", 0, np.int32(4)):
        check_draft_length(value)
    for value in (-1, 1, np.int64(7)):
        check_max_tokens(value)
    check_name(".", "graph")
    check_name(Path(), "graph")
    check_text("ದಾರಿ 😀", "text")
    TierOptions(bits=None, drop_layers="auto", group_size=7)
    ExtractOptions(layer=-1), ExtractOptions(layer="final")


@pytest.mark.parametrize(
    "given", [{"prompt": HALF}, {"stop": HALF}, {"stop": ["a", HALF]}], ids=["prompt", "stop", "stops"]
)
def test_half_a_character_is_no_text(given: dict[str, Any], teacher: Teacher) -> None:
    with pytest.raises(DaariError, match="no UTF-8, or half a surrogate pair"):
        next(stream_generate(teacher.model, teacher.tokenizer, **{"prompt": "hi", **given}))
