"""Recorded streams of a teacher: what it answered, and the states that its answers were chosen from.

Whoever drafts can be studied on them without the teacher, in seconds; see :mod:`daari_mlx.measure.replay`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.evaluated import evaluated
from daari_mlx.ground.files import load_arrays, save_arrays
from daari_mlx.ground.given import check_max_tokens
from daari_mlx.ground.progress import Told, bar
from daari_mlx.ground.regular import check_regular
from daari_mlx.ground.types import FloatArray, IntArray
from daari_mlx.teacher.judge import greedy
from daari_mlx.text.identity import prompt_hash, prompt_key

if TYPE_CHECKING:
    import mlx.core as mx

    from daari_mlx.teacher.load import Teacher
    from daari_mlx.teacher.tap import Tap
    from daari_mlx.text.data import Prompt

SHOWN = 9  # the teacher's likeliest tokens that are kept a row: its own and eight others
ARRAYS = {"tokens": np.int32, "lengths": np.int64, "starts": np.int64, "top": np.int32, "about": np.uint8}
STATES = "states."  # begins the name of a layer's states


@dataclass(frozen=True)
class Stream:
    """One prompt with the teacher's greedy answer of n tokens; with V ids and states of width H:

    Attributes:
        tokens: prompt and answer.
        start: where the answer begins, at least 1.
        states: by layer ``(n + 1, H)`` float32; row e is the state from which ``tokens[start - 1 + e]`` was chosen. Row
            0 chose the prompt's last token; of a prompt of one token it is zero, since no forward has shown it.
        top: ``(n + 1, SHOWN)`` int32, the likeliest tokens at the same rows, falling.
        known_as: the hash by which a graph knows the prompt; None for the hash of its tokens.
    """

    tokens: list[int]
    start: int
    states: dict[int | str, FloatArray]
    top: IntArray
    known_as: int | None = None

    @property
    def key(self) -> int:
        """The hash by which a graph knows the prompt, see :func:`daari_mlx.text.identity.prompt_key`."""
        return prompt_hash(self.prompt) if self.known_as is None else self.known_as

    @property
    def prompt(self) -> list[int]:
        """The prompt."""
        return self.tokens[: self.start]

    @property
    def answer(self) -> list[int]:
        """The answer, its end-of-sequence token included."""
        return self.tokens[self.start :]


@dataclass(frozen=True)
class Streams:
    """Some streams of one teacher.

    Attributes:
        items: the streams.
        max_tokens: how long an answer could become; -1 for no limit.
        context_length: the most tokens that the teacher can hold, None where it is not known.
        ends: token ids that end an answer.
        teacher: the fingerprint of the teacher, as :meth:`daari_mlx.teacher.load.Teacher.fingerprint` gives it.
    """

    items: tuple[Stream, ...]
    max_tokens: int
    context_length: int | None
    ends: tuple[int, ...]
    teacher: dict[str, Any]

    @property
    def layers(self) -> list[int | str]:
        """The layers whose states are there."""
        return list(self.items[0].states)


def record(teacher: Teacher, prompts: Sequence[Prompt], layers: Sequence[int | str], max_tokens: int) -> Streams:
    """Let the teacher answer greedily, one forward a token, as mlx-lm does, and keep what it shows.

    Args:
        prompts: at least one.
        layers: whose states are kept.
        max_tokens: the longest answer; -1 for no limit.

    Raises:
        DaariError: there are no prompts or layers, or ``max_tokens`` is none.
    """
    from daari_mlx.teacher.tap import tap_model

    if not prompts or not layers:
        raise DaariError("Nothing to record: give at least one prompt and one layer.")
    check_max_tokens(max_tokens)
    taps = {layer: tap_model(teacher.model, layer)[0] for layer in layers}
    ends = tuple(sorted(teacher.tokenizer.eos_token_ids))
    with bar(total=len(prompts), desc="streams", unit="prompt") as shown:
        items = tuple(
            replace(
                _answer(teacher, prompt.tokens, taps, ends, max_tokens, shown.unit()),
                known_as=prompt_key(prompt.tokens, prompt.identity),
            )
            for prompt in prompts
        )
    return Streams(items, max_tokens, teacher.context_length, ends, teacher.fingerprint())


def _answer(
    teacher: Teacher,
    prompt: list[int],
    taps: dict[int | str, Tap],
    ends: tuple[int, ...],
    max_tokens: int,
    told: Told,
) -> Stream:
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from daari_mlx.teacher.load import PREFILL_STEP_SIZE

    cache = make_prompt_cache(teacher.model)
    rows: list[tuple[IntArray, dict[int | str, FloatArray]]] = []

    def forward(ids: list[int]) -> mx.array:
        """``(1, V)`` logits after the last of ``ids``; what the teacher shows there becomes a row."""
        with ExitStack() as stack:
            seen = {layer: stack.enter_context(tap.reading()) for layer, tap in taps.items()}
            logits: mx.array = teacher.model(mx.array([ids], dtype=mx.uint32), cache=cache)[0, -1:]
        states = {layer: states[-1][0, -1].astype(mx.float32) for layer, states in seen.items()}
        mx.eval(logits, states, [c.state for c in cache])
        rows.append((likeliest(evaluated(logits.astype(mx.float32))[0]), {k: np.array(s) for k, s in states.items()}))
        return logits

    ahead, end = prompt[:-1], 0 if max_tokens < 0 else len(prompt) + max_tokens
    for start in range(0, len(ahead), PREFILL_STEP_SIZE):
        forward(ahead[start : start + PREFILL_STEP_SIZE])
        told(min(start + PREFILL_STEP_SIZE, len(ahead)), end)
    rows = rows[-1:]  # of prefill only what its end shows
    tokens = list(prompt)
    limit = teacher.context_length
    while len(tokens) - len(prompt) != max_tokens and (limit is None or len(tokens) < limit):
        tokens.append(int(evaluated(greedy(forward([tokens[-1]]))[0])[0]))
        told(len(tokens), end)
        if tokens[-1] in ends:
            break
    told(1, 1)
    if not ahead:
        rows.insert(0, (rows[0][0], {layer: np.zeros_like(state) for layer, state in rows[0][1].items()}))
    return Stream(
        tokens,
        len(prompt),
        {layer: np.stack([states[layer] for _, states in rows]) for layer in taps},
        np.stack([top for top, _ in rows]),
    )


def likeliest(logits: FloatArray) -> IntArray:
    """The ``SHOWN`` likeliest of ``(V,)`` logits, falling; the smaller id first where two are as likely. ``(SHOWN,)``.

    A vocabulary that is smaller repeats its last one.
    """
    count = min(SHOWN, len(logits))
    least = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= least)
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    return np.concatenate([ids, np.repeat(ids[-1:], SHOWN - count)]).astype(np.int32)


def save_streams(streams: Streams, path: Path) -> None:
    """Write streams as one safetensors file, whole or not at all."""
    about = {
        "layers": streams.layers,
        "max_tokens": streams.max_tokens,
        "context_length": streams.context_length,
        "ends": list(streams.ends),
        "teacher": streams.teacher,
    }
    items = streams.items
    save_arrays(
        path,
        {
            "tokens": np.concatenate([np.array(s.tokens, np.int32) for s in items]),
            "lengths": np.array([len(s.tokens) for s in items], np.int64),
            "starts": np.array([s.start for s in items], np.int64),
            "top": np.concatenate([s.top for s in items]),
            "keys": np.array([s.key for s in items], np.uint64),
            "about": np.frombuffer(json.dumps(about).encode(), np.uint8),
            **{f"{STATES}{layer}": np.concatenate([s.states[layer] for s in items]) for layer in streams.layers},
        },
    )


def load_streams(path: Path) -> Streams:
    """Read streams that :func:`save_streams` wrote.

    Raises:
        DaariError: there is no such file, or it is damaged.
    """
    check_regular(path, "file of streams", instead="Record one with daari-mlx bench --save-streams.")
    arrays = load_arrays(path)

    def require(holds: bool, what: str) -> None:
        if not holds:
            raise DaariError(f"The streams in {path} are damaged: {what}. Record them anew.")

    for name, dtype in ARRAYS.items():
        require(name in arrays and arrays[name].dtype == dtype, f"{name} is missing or no {np.dtype(dtype)}")
    require(all(arrays[name].ndim == 1 for name in ARRAYS if name != "top"), "an array has other dimensions")
    try:
        about = json.loads(arrays["about"].tobytes())
        layers, max_tokens, context = about["layers"], about["max_tokens"], about["context_length"]
        ends, teacher = about["ends"], about["teacher"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DaariError(f"The streams in {path} are damaged: {error!r}. Record them anew.") from error
    require(
        type(max_tokens) is int
        and (context is None or type(context) is int)
        and isinstance(ends, list)
        and all(type(end) is int for end in ends)
        and isinstance(teacher, dict)
        and isinstance(layers, list)
        and len(layers) > 0
        and all(type(layer) in (int, str) for layer in layers),
        "it does not say what it holds",
    )
    lengths, starts, tokens, top = (arrays[name] for name in ("lengths", "starts", "tokens", "top"))
    require(len(lengths) > 0 and len(starts) == len(lengths), "it holds no streams")
    require(bool(((starts >= 1) & (starts < lengths)).all()), "an answer begins outside its stream")
    require(int(lengths.sum()) == len(tokens), "its tokens are not those of its streams")
    require(bool((tokens >= 0).all() and (top >= 0).all()), "a token id is negative")
    keys = arrays.get("keys")  # streams of older versions have none
    require(keys is None or (keys.dtype == np.uint64 and keys.shape == lengths.shape), "it has not one key a stream")
    known_as: list[int | None] = [None] * len(lengths) if keys is None else keys.tolist()
    counts = lengths - starts + 1
    require(top.shape == (int(counts.sum()), SHOWN), "it has other rows than its answers")
    for layer in layers:
        rows = arrays.get(f"{STATES}{layer}")
        require(
            rows is not None
            and rows.dtype in (np.float32, np.float16)
            and rows.ndim == 2
            and len(rows) == len(top)
            and bool(np.isfinite(rows).all()),
            f"the states of layer {layer} are missing or not finite",
        )
    items, token, row = [], 0, 0
    each = zip(lengths.tolist(), starts.tolist(), counts.tolist(), known_as, strict=True)
    for length, start, count, key in each:
        states = {k: arrays[f"{STATES}{k}"][row : row + count].astype(np.float32) for k in layers}
        items.append(Stream(tokens[token : token + length].tolist(), start, states, top[row : row + count], key))
        token, row = token + length, row + count
    return Streams(tuple(items), max_tokens, context, tuple(ends), teacher)
