"""What is kept about a model belongs to the model as it is: a stamp of its present state, and values kept under it.

Between two answers somebody may switch an adapter off, load other weights or quantise. Caches, taps and measurements of
the model as it was are then those of another model.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from operator import is_
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np

T = TypeVar("T")
SAMPLES = 64  # values that are read of each array
_PLAIN = (bool, int, float, str, type(None))
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}  # by bytes of a value, bfloat16 included


@dataclass(frozen=True, eq=False)
class Stamp:
    """The state of a model at one moment; equal stamps mean the same modules, arrays and settings (see :func:`stamp`).

    Attributes:
        things: weak references to the modules and arrays: nothing is kept alive, and an id that is used again is told.
        values: their names, classes and plain settings, in the same walk.
        samples: some values of each array.
    """

    things: list[weakref.ref[Any]]
    values: list[Any]
    samples: bytes

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Stamp)
            and len(self.things) == len(other.things)
            and all(map(is_, self.things, other.things))  # one living thing has one weak reference
            and self.values == other.values
            and self.samples == other.samples
        )

    __hash__ = None  # type: ignore[assignment]


def stamp(model: Any) -> Stamp:
    """What state a model is in: a walk over its modules, without a forward (2 ms for 30 layers).

    It tells replaced modules and arrays (loaded weights, adapters, quantising), changed numbers and texts among a
    module's attributes and configuration (an adapter's ``scale``, ``training``), and arrays that were changed in place
    where one of ``SAMPLES`` values spread over each is another one. Names that begin with ``_`` are a module's own
    business, and subclasses of ours (a tap) change no answer.

    It cannot tell: a few values of an array changed in place, and on CUDA any, where to look would move the array;
    methods that were replaced; objects among the attributes that are neither modules nor dataclasses.
    """
    things: list[weakref.ref[Any]] = []
    values: list[Any] = []
    samples: list[bytes] = []
    waiting, met = [model], {id(model)}
    while waiting:
        item = waiting.pop()
        entries: Any = item.items() if isinstance(item, dict) else ()
        if isinstance(item, (list, tuple)):
            entries = enumerate(item)
        elif own := getattr(item, "__dict__", None):  # a module's numbers and texts, or a configuration
            things.append(weakref.ref(item))
            values.append(_own_class(type(item)))
            for name, value in own.items():
                if name[0] == "_" and name != "_training":
                    continue
                if isinstance(value, _PLAIN):
                    values += name, value
                elif is_dataclass(value) and id(value) not in met:
                    met.add(id(value))
                    waiting.append(value)
        for name, value in entries:
            if type(value) is mx.array:
                if type(name) is int or name[:1] != "_":
                    samples.append(sample := _sample(value))
                    if sample and value.size <= SAMPLES:  # read whole; gemma3n puts equal ones in their place
                        values += name, value.shape, value.dtype
                    else:
                        values.append(name)
                        things.append(weakref.ref(value))
            elif isinstance(value, (dict, list, tuple)):
                if id(value) not in met:
                    met.add(id(value))
                    values.append(name)
                    waiting.append(value)
            elif isinstance(value, _PLAIN):
                values += name, value
    return Stamp(things, values, b"".join(samples))


def _own_class(cls: type) -> type:
    """A module's class without the subclasses that this package gives to instances."""
    while cls.__module__.startswith("daari_mlx.teacher"):
        cls = cls.__mro__[1]
    return cls


def _sample(array: mx.array) -> bytes:
    """Some values, read where they lie: no operation is run; nothing of what cannot be read so."""
    if not array.size or not memoryview(array).c_contiguous or mx.cuda.is_available():  # type: ignore[arg-type]
        return b""
    values = np.frombuffer(array, _WORDS[array.itemsize])  # type: ignore[call-overload]
    return values[:: array.size // SAMPLES | 1][:SAMPLES].tobytes()  # odd steps: not one column only


@dataclass
class _Record:
    model: weakref.ref[Any]
    stamp: Stamp
    values: dict[Hashable, Any] = field(default_factory=dict)


_records: dict[int, _Record] = {}  # by the model's id; nothing is put on the model: a copy of it starts anew
_scope = threading.local()


def keep(model: Any, name: Hashable, make: Callable[[], T]) -> T:
    """What was made for this model under this name; made anew once the model has changed (see :func:`stamp`).

    Args:
        make: makes it; what it gives may hold modules of the model, never the model itself.
    """
    values = _values(model)
    if name not in values:
        values[name] = make()
    return values[name]


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Within it this thread takes the model not to change: :func:`keep` looks at it once."""
    outer = getattr(_scope, "values", {})
    _scope.values = {**outer, id(model): _values(model)}
    try:
        yield
    finally:
        _scope.values = outer


def _values(model: Any) -> dict[Hashable, Any]:
    known: dict[Hashable, Any] | None = getattr(_scope, "values", {}).get(id(model))
    if known is not None:
        return known
    now, record = stamp(model), _records.get(id(model))
    if record is None or record.model() is not model or record.stamp != now:
        record = _records[id(model)] = _Record(weakref.ref(model, partial(_forget, id(model))), now)
    return record.values


def _forget(key: int, gone: weakref.ref[Any]) -> None:
    record = _records.get(key)
    if record is not None and record.model is gone:
        del _records[key]
