"""The same model with fewer layers: rebuilt from its own configuration, or refused where that cannot say it.

The configuration of a model with fewer layers has a smaller count and shorter lists of one entry a layer. Where a
layer's kind follows from its place instead (every sixth one looks at everything), leaving one out would turn others
into another kind: every layer of the rebuilt model is therefore compared with the one that it stands for.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Collection, Iterable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.evaluated import evaluated

COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
PLACES = ("full_attn_idxs", "mlp_only_layers", "sliding_window_layers", "attn_layer_indices")  # lists of layers, from 0
NO_LAYERS = re.compile(r"token|architectures")  # keys of lists that are never one entry a layer
ITS_PLACE = re.compile(r"(^|_)(idx|index|id)$")  # attributes that say where a layer stands, not what it is
Config = dict[str, Any]


class CannotDrop(DaariError):
    """These layers cannot be left out; the message says why."""


def layer_count(model: nn.Module) -> int:
    """How many layers a model has.

    Raises:
        CannotDrop: it does not say.
    """
    return len(_layers(model)[1])


def without_layers(model: nn.Module, config: Config, dropped: Collection[int]) -> tuple[nn.Module, Config]:
    """A model without some layers, sharing the others' weights, and its configuration.

    Args:
        model: as mlx-lm loads it, quantised or not; it stays as it is.
        config: its configuration, as in config.json; it stays as it is.
        dropped: indices of layers; none gives a twin.

    Raises:
        CannotDrop: with the reason.
    """
    prefix, layers = _layers(model)
    kept = [place for place in range(len(layers)) if place not in dropped]
    if not kept:
        raise CannotDrop("No layer would be left.")
    smaller = _smaller(model, config, len(layers), kept, prefix)
    try:
        build: Any = type(model)
        twin = build(type(model.args).from_dict(copy.deepcopy(smaller)))
        _quantise_like(model, twin, prefix, kept)
        weights: Any = tree_flatten(model.parameters())
        twin.load_weights(_renamed(weights, prefix, kept), strict=True)
        found = _kinds(twin)
    except CannotDrop:
        raise
    except Exception as error:  # an architecture's own code: anything can come
        raise CannotDrop(f"{_name(model)} cannot be built with {len(kept)} layers: {_short(error)}") from error
    wanted = _kinds(model)
    for place, old in enumerate(kept):
        if place >= len(found) or found[place] != wanted[old]:
            raise CannotDrop(
                f"{_name(model)}: without {_listed(dropped)}, layer {old} would be another kind, since its place "
                "decides what it is."
            )
    twin.eval()
    return twin, smaller


def droppable_units(model: nn.Module, config: Config) -> list[tuple[int, ...]]:
    """Which layers can be left out together: single ones, else whole periods of a pattern, the shortest that can.

    Raises:
        CannotDrop: none can; with the reason.
    """
    count = layer_count(model)
    best: list[tuple[int, ...]] = []
    reason: CannotDrop | None = None
    for length in range(1, count // 2 + 1):
        units = []
        for start in range(0, count - length + 1, length):
            unit = tuple(range(start, start + length))
            try:
                without_layers(model, config, unit)
                units.append(unit)
            except CannotDrop as error:
                reason = reason or error
        if len(units) * length > sum(map(len, best)):
            best = units
        if len(units) * length * 2 >= count:  # the last layers of a pattern can nearly always go: that is no choice
            break
    if not best:
        raise reason or CannotDrop(f"{_name(model)} has {count} layers: too few to leave one out.")
    return best


def _layers(model: nn.Module) -> tuple[str, list[nn.Module]]:
    """The prefix of the layers' parameter names, ``"model.layers."``, and the layers."""
    layers = getattr(model, "layers", None)
    names = {id(module): name for name, module in model.named_modules()}
    if isinstance(layers, list) and layers and id(layers[0]) in names and hasattr(model, "args"):
        prefix = names[id(layers[0])].removesuffix("0")
        if all(names.get(id(layer)) == f"{prefix}{place}" for place, layer in enumerate(layers)):
            return prefix, layers
    raise CannotDrop(f"{_name(model)} keeps its layers in more than one list: none can be left out.")


def _smaller(model: nn.Module, config: Config, count: int, kept: list[int], prefix: str) -> Config:
    smaller = copy.deepcopy(config)
    holders = [smaller, *(v for k, v in smaller.items() if k == "text_config" and isinstance(v, dict))]
    for holder in holders:
        for key, value in list(holder.items()):
            holder[key] = _shortened(key, value, count, kept)
    derived = getattr(model.args, "text_config", None) if len(holders) > 1 else model.args
    for key, value in (vars(derived) if hasattr(derived, "__dict__") else {}).items():
        if isinstance(value, list) and holders[-1].get(key) is None:  # lists that the arguments made up themselves
            shortened = _shortened(key, value, count, kept)
            if shortened != value:
                holders[-1][key] = shortened
    for key in ("quantization", "quantization_config"):
        if isinstance(smaller.get(key), dict):
            smaller[key] = dict(_renamed(smaller[key].items(), prefix, kept))
    return smaller


def _shortened(key: str, value: Any, count: int, kept: list[int]) -> Any:
    if key in COUNTS and value == count:
        return len(kept)
    if key in PLACES and isinstance(value, list):
        return [kept.index(place) for place in value if place in kept]
    if isinstance(value, list) and len(value) == count and not NO_LAYERS.search(key):
        return [value[place] for place in kept]
    if isinstance(value, str) and len(value) == count and "pattern" in key:
        return "".join(value[place] for place in kept)
    return value


def _renamed(items: Iterable[tuple[str, Any]], prefix: str, kept: list[int]) -> list[tuple[str, Any]]:
    """Entries under the names that they have where only the ``kept`` layers are."""
    places = {old: new for new, old in enumerate(kept)}
    renamed = []
    for name, value in items:
        if name.startswith(prefix):
            number, _, rest = name.removeprefix(prefix).partition(".")
            if int(number) not in places:
                continue
            name = f"{prefix}{places[int(number)]}.{rest}"
        renamed.append((name, value))
    return renamed


def _quantise_like(model: nn.Module, twin: nn.Module, prefix: str, kept: list[int]) -> None:
    """Give the twin the same quantised modules; its own weights are never computed."""
    how = {
        name: {"group_size": module.group_size, "bits": module.bits, "mode": getattr(module, "mode", "affine")}
        for name, module in model.named_modules()
        if hasattr(module, "bits") and hasattr(module, "group_size")
    }
    renamed = dict(_renamed(how.items(), prefix, kept))
    if renamed:
        nn.quantize(twin, class_predicate=lambda name, _: renamed.get(name, False))


def _kinds(model: nn.Module) -> list[Any]:
    """What each layer is, whatever its weights: modules, sizes, flags, fixed tables, entries in the model's lists."""
    prefix, layers = _layers(model)
    lists = [
        (name, key, value)
        for name, module in model.named_modules()
        if not name.startswith(prefix)
        for key, value in module.items()
        if isinstance(value, (list, tuple)) and len(value) == len(layers) and not isinstance(value[0], nn.Module)
    ]
    return [
        ([_kind(name, part) for name, part in layer.named_modules()], [(n, k, str(v[place])) for n, k, v in lists])
        for place, layer in enumerate(layers)
    ]


def _kind(name: str, module: nn.Module) -> Any:
    flags = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, (bool, int, float, str)) and not key.startswith("_") and not ITS_PLACE.search(key)
        if key not in COUNTS  # some keep the whole model's; agreement is measured on the rebuilt one
    }
    arrays = {
        key: (tuple(value.shape), _digest(value) if key.startswith("_") else "")
        for key, value in module.items()
        if isinstance(value, mx.array)
    }
    return name, type(module).__name__, flags, arrays


def _digest(array: mx.array) -> str:
    values = array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array
    return hashlib.sha256(evaluated(values).tobytes()).hexdigest()


def _name(model: nn.Module) -> str:
    return str(getattr(model, "model_type", None) or type(model).__module__.rsplit(".", 1)[-1])


def _listed(dropped: Collection[int]) -> str:
    return f"layer{'s' * (len(dropped) > 1)} {', '.join(map(str, sorted(dropped)))}"


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
