"""A cheap tier of a teacher, to draft for it: quantised by mlx-lm, without the layers that its answers need least.

Nothing is trained. Layers are chosen by measured agreement with the teacher's own greedy stream on the user's own
text, one after another; the record shows what each one costs and saves.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx_lm.utils
import numpy as np
from mlx.utils import tree_flatten, tree_map, tree_unflatten

from daari_mlx.compile.answers import answer_prompts
from daari_mlx.compile.workdir import Workdir
from daari_mlx.cost import machine
from daari_mlx.cost.length import CALIBRATION_EDGES
from daari_mlx.draft.model import TIER, measure_draft_cost
from daari_mlx.graph.artifact import BYSTANDERS, versions
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import whole, write_json
from daari_mlx.ground.learning import check_nobody_learns
from daari_mlx.ground.progress import bar
from daari_mlx.ground.regular import check_new_folder
from daari_mlx.teacher.follower import Follower
from daari_mlx.teacher.judge import greedy
from daari_mlx.teacher.load import MODEL_FILES, Teacher
from daari_mlx.text.data import Prompt, Sequence
from daari_mlx.text.identity import tokens_hash
from daari_mlx.tier.choice import BLOCK, FORMULA, Measured, Tier, expected_speed, fastest, ladder
from daari_mlx.tier.depth import CannotDrop, Config, droppable_units, layer_count, without_layers
from daari_mlx.tier.options import GROUP_SIZES, TierOptions

FORMAT = 1


def make_tier(
    teacher: Teacher, prompts: list[Prompt], out: str | Path, how: TierOptions, command: str | None = None
) -> dict[str, Any]:
    """Make a tier and write it as a folder that mlx-lm loads, with ``tier.json`` beside the weights.

    Args:
        teacher: an adapter of it is fused, for good; else it stays as it is.
        prompts: the user's own text; the teacher answers it.
        out: the folder to write; another tier there is replaced.
        command: the command line, for the record.

    Returns:
        The record, as in ``tier.json``.

    Raises:
        DaariError: layers of this model cannot be left out (see :mod:`daari_mlx.tier.depth`), or not so many; ``out``
        holds something else.
    """
    check_target(out)
    config = read_config(teacher.source)
    who = teacher.fingerprint()
    fuse(teacher.model)
    model, config = quantised(teacher.model, config, how.bits, how.group_size)
    units = _units(model, config, how.drop_layers)
    cost = machine.measured_cost(teacher.model)
    with tempfile.TemporaryDirectory() as folder:
        sequences = answer_prompts(teacher, prompts, Workdir(folder), how.max_tokens)
    read, read_config_ = _for_reading(model, config)
    full = weight_bytes(teacher.model)
    most = None if how.drop_layers == "auto" else how.drop_layers
    with bar(total=_tries(units, most), desc="trying which layers to leave out", unit="try") as progress:

        def measure(dropped: tuple[int, ...]) -> Measured | None:
            if progress.total is not None and progress.n > progress.total - 1:
                progress.expect(1)
            told, done = progress.unit(), count(1)
            try:
                smaller = without_layers(read, read_config_, dropped)[0]
                return agreement(smaller, sequences, lambda: told(next(done), len(sequences)))
            except CannotDrop:
                told(1, 1)
                return None

        def weigh(dropped: tuple[int, ...]) -> float:
            return weight_bytes(without_layers(model, config, dropped)[0]) / full

        tiers = ladder(units, measure, weigh, cost, most)
        progress.expect(0)
    chosen = fastest(tiers) if most is None else tiers[-1]
    if most is not None and len(chosen.dropped) != most:
        raise DaariError(f"Only {len(chosen.dropped)} layers of this model can be left out, not {most}.")
    tier, config = without_layers(model, config, chosen.dropped)
    record = _record(teacher, who, how, tiers, chosen, sequences, layer_count(teacher.model))
    draft_cost = measure_draft_cost(tier, teacher.model)
    block, speed = expected_speed(chosen.measured, draft_cost, cost)
    record |= {"measured_draft_cost": draft_cost, "speed_here": speed, "block_here": block, "command": command}
    with whole(Path(out), folder=True) as beside:
        _save(beside, teacher, tier, config)
        write_json(beside / TIER, record)
    return record


def _tries(units: list[tuple[int, ...]], most: int | None) -> int:
    """How many candidates are tried, as far as can be told: all layers, without each unit, one for each further unit.

    Args:
        most: how many layers are left out; None where that is found out.
    """
    if most == 0 or not units:
        return 1
    return len(units) + (1 if most is None else -(-most // len(units[0])))


def _units(model: nn.Module, config: Config, wanted: int | str) -> list[tuple[int, ...]]:
    """What can be left out, when as many layers as are ``wanted`` can be; told before anything is measured.

    Raises:
        DaariError: they cannot.
    """
    if wanted == 0:
        return []
    units = droppable_units(model, config)
    size, layers = len(units[0]), layer_count(model)
    most = min(size * len(units), (layers - 1) // size * size)
    if isinstance(wanted, int) and wanted > most:
        raise DaariError(f"--drop-layers is {wanted}: of the {layers} layers of this model {most} can be left out.")
    if isinstance(wanted, int) and wanted % size:
        raise DaariError(
            f"--drop-layers is {wanted}, but layers of this model can only go {size} at a time, as they alternate in "
            "kind: give a multiple of that, or auto."
        )
    return units


def check_target(out: str | Path, replace: bool = True) -> None:
    """Raise :class:`DaariError` where a tier cannot be at ``out``: something else is, or a process learns there."""
    check_new_folder(out, "--out", "tier", _others, replace)
    check_nobody_learns(out, "--out")


def _others(names: list[str]) -> list[str]:
    """Which names of a folder are no tier's; all of them where it is none."""
    is_tier = {TIER, "config.json"} <= set(names)
    return [name for name in names if not is_tier or not (name.endswith(MODEL_FILES) or name in BYSTANDERS)]


def read_config(source: str) -> Config:
    """The config.json of a model's folder or Hub repository."""
    path = Path(source)
    return dict(mlx_lm.utils.load_config(path if path.exists() else mlx_lm.utils.hf_repo_to_path(source)))


def quantised(model: nn.Module, config: Config, bits: int | None, group_size: int) -> tuple[nn.Module, Config]:
    """A quantised twin by mlx-lm's quantiser, and its configuration; ``model`` stays as it is.

    Args:
        bits: None leaves the weights as they are; else what is quantised otherwise is dequantised first.

    Raises:
        DaariError: MLX has no such groups, or no weight of this model is made of them.
    """
    if bits is not None and group_size not in GROUP_SIZES:
        raise DaariError(f"--group-size is {group_size}: MLX quantises in groups of 32, 64 or 128.")
    twin, config = without_layers(model, config, ())
    known = {module.bits for _, module in twin.named_modules() if hasattr(module, "bits")}
    if bits is None or (known == {bits} and "quantization" in config):
        return twin, config
    if known:
        twin, config = dequantised(twin, config)
    with contextlib.redirect_stdout(sys.stderr):  # it prints, and stdout is for results
        twin, config = mlx_lm.utils.quantize_model(model=twin, config=config, group_size=group_size, bits=bits)
    if not any(hasattr(module, "bits") for module in twin.modules()):
        raise DaariError(
            f"--group-size is {group_size}, but no weight of this model has rows of a multiple of that: give a smaller "
            "one, or --bits none."
        )
    return twin, config


def dequantised(model: nn.Module, config: Config, dtype: mx.Dtype | None = None) -> tuple[nn.Module, Config]:
    """A twin with the same weights unpacked, all in ``dtype`` where that is given, and its configuration."""
    twin, config = without_layers(model, config, ())
    twin = mlx_lm.utils.dequantize_model(twin)
    if dtype is not None:
        twin.update(
            tree_map(lambda x: x.astype(dtype) if mx.issubdtype(x.dtype, mx.floating) else x, twin.parameters())
        )
    mx.eval(twin.parameters())
    return twin, {k: v for k, v in config.items() if k not in ("quantization", "quantization_config")}


def weight_bytes(model: nn.Module) -> int:
    """The bytes of all parameters."""
    return sum(value.nbytes for _, value in _parameters(model))


def agreement(model: nn.Module, sequences: list[Sequence], told: Callable[[], None] = lambda: None) -> Measured:
    """Where a drafting model's greedy token is the next one of each answer; what prompts share is read once.

    Args:
        sequences: prompts with the teacher's own answers.
        told: called after each.
    """
    follower = Follower(model)
    agrees: list[list[bool]] = []
    promises: list[list[float]] = []
    for sequence in sorted(sequences, key=lambda s: s.tokens):
        answer = sequence.tokens[sequence.answer_start :]
        tokens, logprobs = greedy(follower.read(sequence.tokens[:-1], len(answer)))
        best = mx.exp(logprobs.max(axis=-1)).astype(mx.float32)
        mx.eval(tokens, best)
        agrees.append((np.array(tokens) == np.array(answer)).tolist())
        promises.append(np.array(best).tolist())
        told()
    return Measured(agrees, promises)


def calibration_counts(measured: Measured) -> dict[str, list[float]]:
    """How many promises were kept and judged, by the bins of :class:`daari_mlx.cost.length.Calibration`."""
    kept, judged = ([0.0] * (len(CALIBRATION_EDGES) + 1) for _ in range(2))
    for agrees, promises in zip(measured.agrees, measured.promises, strict=True):
        for right, promise in zip(agrees, promises, strict=True):
            judged[bisect(CALIBRATION_EDGES, promise)] += 1
            kept[bisect(CALIBRATION_EDGES, promise)] += right
    return {"kept": kept, "judged": judged}


def fuse(model: nn.Module) -> None:
    """Put an adapter's weights into the model's own, as mlx_lm.fuse does."""
    fused = [(name, module.fuse()) for name, module in model.named_modules() if hasattr(module, "fuse")]
    if fused:
        model.update_modules(tree_unflatten(fused))


def _for_reading(model: nn.Module, config: Config) -> tuple[nn.Module, Config]:
    """The model to measure: on a processor, where packed weights are slow, the same values unpacked."""
    if mx.default_device() == mx.Device(mx.cpu):
        return dequantised(model, config, mx.float32)
    return model, config


def _parameters(model: nn.Module) -> Iterator[tuple[str, mx.array]]:
    return iter(tree_flatten(model.parameters()))  # type: ignore[arg-type]


def _record(
    teacher: Teacher,
    who: dict[str, Any],
    how: TierOptions,
    tiers: list[Tier],
    chosen: Tier,
    sequences: list[Sequence],
    layers: int,
) -> dict[str, Any]:
    return {
        "format_version": FORMAT,
        "teacher": who,
        "settings": asdict(how),
        "layers": layers - len(chosen.dropped),
        "dropped": sorted(chosen.dropped),
        "formula": FORMULA,
        "tiers": [_row(tier, layers) for tier in tiers],
        "chosen": tiers.index(chosen),
        "calibration": calibration_counts(chosen.measured),
        "answers": {
            "sequences": len(sequences),
            "tokens": sum(len(s.tokens) - s.answer_start for s in sequences),
            "hash": tokens_hash((s.tokens, s.answer_start) for s in sequences),
        },
        "versions": versions(),
    }


def _row(tier: Tier, layers: int) -> dict[str, Any]:
    tokens, passes = tier.measured.passes(BLOCK)
    return {
        "dropped": list(tier.dropped),
        "layers": layers - len(tier.dropped),
        "weights": tier.weights,
        "agreement": tier.measured.agreement,
        f"tokens_per_pass_at_{BLOCK}": tokens / passes,
        "block": tier.block,
        "speed": tier.speed,
    }


def _save(folder: Path, teacher: Teacher, tier: nn.Module, config: Config) -> None:
    with contextlib.redirect_stdout(sys.stderr):
        mlx_lm.utils.save(
            dst_path=folder,
            src_path_or_repo=teacher.source,
            model=tier,
            tokenizer=teacher.tokenizer,
            config=config,
            donate_model=False,
        )
