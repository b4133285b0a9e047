"""The tap: read the teacher's states from the very forward that also gives its logits.

The place is found by tracing one lazy two-token forward, which is never evaluated and costs nothing, so no module has
to be known by name: the final states are what goes into the last module whose output is as wide as the vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.kept import keep
from daari_mlx.teacher.quirks import refuses_blocks

FINAL = "final"  # the states that the head reads
_TRACING = threading.Lock()  # a trace swaps the classes of all modules: two at once would keep each other's
_METHODS = ("__call__", "as_linear")  # as_linear: the head of models with tied embeddings


class Tap:
    """A place in a model where the states pass; see :func:`tap_model`."""

    def __init__(self) -> None:
        self._sink = threading.local()

    @contextmanager
    def reading(self) -> Iterator[list[mx.array]]:
        """Collect the states of every forward that this thread runs inside the ``with``: ``(1, m, H)`` each.

        Raises:
            RuntimeError: at the end, where no forward passed the tap.
        """
        outer = getattr(self._sink, "states", None)
        states: list[mx.array] = []
        self._sink.states = states
        try:
            yield states
        finally:
            self._sink.states = outer
        if not states:
            raise RuntimeError(
                "The teacher's tap was lost: a module was replaced after it was put there. Tap it again."
            )

    def fire(self, states: mx.array) -> None:
        """Called by the tapped module; does nothing while nobody reads."""
        sink = getattr(self._sink, "states", None)
        if sink is not None:
            sink.append(states)


def tap_model(model: nn.Module, layer: int | str = FINAL) -> tuple[Tap, int]:
    """Find where a model's states pass and put a tap there: once, and again after the model was changed.

    A module that is replaced takes its tap along, so ask for it anew for every answer.

    Args:
        model: any model that mlx-lm loads.
        layer: ``"final"`` for the states that the head reads, or the index of one of ``model.layers``, negative from
            the end, for what this layer gives out.

    Returns:
        The tap and H, the width of the states.

    Raises:
        DaariError: where the model shows no states there, or its states in a block of tokens are not those of single
            tokens.
    """
    with _TRACING:
        taps: dict[int | str, tuple[Tap, int]] = keep(model, "taps", dict)
        if layer not in taps:
            reason = refuses_blocks(model)
            if reason is not None:
                raise DaariError(f"This model cannot be a teacher: {reason}.")
            taps[layer] = _final_tap(model) if layer == FINAL else _layer_tap(model, layer)
        return taps[layer]


def vocabulary_of(model: nn.Module) -> int:
    """V, how many token ids the model's logits have; told by a lazy forward, once a model."""
    return keep(model, "vocabulary", lambda: int(model(mx.array([[1]])).shape[-1]))


def _final_tap(model: nn.Module) -> tuple[Tap, int]:
    calls, vocabulary = _trace(model)
    heads = [c for c in calls if _width(c[3]) == vocabulary and _width(c[2]) not in (0, vocabulary)]
    if heads:
        module, method, states, _ = heads[-1]
        return _hook(module, method, f"{FINAL}_given", lambda given, _: given), _width(states)
    bodies = [c for c in calls if _width(c[3]) not in (0, vocabulary)]  # the head is a bare matrix product
    if not bodies:
        raise DaariError(
            f"No module of {type(model).__name__} shows the states that its head reads: it cannot be a teacher."
        )
    module, method, _, states = bodies[-1]
    return _hook(module, method, f"{FINAL}_result", lambda _, result: result), _width(states)


def _layer_tap(model: nn.Module, layer: int | str) -> tuple[Tap, int]:
    layers = getattr(model, "layers", None)
    if not isinstance(layers, list) or not isinstance(layer, int) or not -len(layers) <= layer < len(layers):
        count = len(layers) if isinstance(layers, list) else 0
        raise DaariError(
            f"There is no layer {layer!r}: {type(model).__name__} has {count} layers; use 'final' or an index of them."
        )
    module = layers[layer]
    calls, _ = _trace(model)
    results = [_states(c[3]) for c in calls if c[0] is module and c[1] == "__call__"]
    if len(results) != 1 or not _width(results[0]):
        raise DaariError(
            f"Layer {layer} of {type(model).__name__} does not give its states out once a forward; use --layer final."
        )
    return _hook(module, "__call__", str(layer), lambda _, result: _states(result)), _width(results[0])


def _trace(model: nn.Module) -> tuple[list[tuple[nn.Module, str, Any, Any]], int]:
    """Run one lazy two-token forward; return every module call as (module, method, given, result), and V."""
    from mlx_lm.models.cache import make_prompt_cache

    calls: list[tuple[nn.Module, str, Any, Any]] = []
    swapped = []
    for _, module in model.named_modules():
        if module is not model:
            swapped.append((module, type(module)))
            _swap_class(module, _METHODS, lambda m, name, given, result: calls.append((m, name, given, result)))
    try:
        logits = model(mx.array([[1, 2]]), cache=make_prompt_cache(model))
    finally:
        for module, cls in reversed(swapped):
            module.__class__ = cls
    return calls, keep(model, "vocabulary", lambda: int(logits.shape[-1]))


def _hook(module: nn.Module, method: str, name: str, pick: Callable[[Any, Any], Any]) -> Tap:
    """The tap of this name at the module: the one that is there already, or a new one."""
    place = f"_daari_tap_{method}_{name}"
    tap: Tap | None = getattr(type(module), place, None)
    if tap is None:
        tap = new = Tap()
        _swap_class(module, (method,), lambda _, __, given, result: new.fire(pick(given, result)))
        setattr(type(module), place, tap)
    return tap


def _swap_class(module: nn.Module, methods: tuple[str, ...], report: Callable[..., None]) -> None:
    """Give this one instance a subclass that reports its calls: paths, attributes and isinstance stay as they are."""
    cls = type(module)

    def reporting(name: str) -> Callable[..., Any]:
        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = getattr(cls, name)(self, *args, **kwargs)
            report(self, name, args[0] if args else None, result)
            return result

        return call

    module.__class__ = type(cls.__name__, (cls,), {m: reporting(m) for m in methods if hasattr(cls, m)})


def _states(result: Any) -> Any:
    """The states in what a layer gives out: some give a tuple with more behind them."""
    return result[0] if isinstance(result, tuple) and result else result


def _width(value: Any) -> int:
    """The last dimension of a traced ``(1, 2, width)`` array; 0 for anything else."""
    return value.shape[-1] if isinstance(value, mx.array) and value.shape[:-1] == (1, 2) else 0
