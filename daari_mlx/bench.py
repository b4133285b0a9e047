"""Measuring: plain ``mlx_lm.stream_generate`` and ours, prompt by prompt in one process, and whether they said the same."""

from __future__ import annotations

import gc
import importlib
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx_lm
import numpy as np

from daari_mlx import blas, decode, probe
from daari_mlx.accept import Statistics
from daari_mlx.artifact import attach, versions
from daari_mlx.data import Prompt, prompt_hash
from daari_mlx.errors import DaariError
from daari_mlx.fingerprint import describe
from daari_mlx.graph import Graph
from daari_mlx.progress import bar
from daari_mlx.records import FAILED, IDENTICAL, TIE, BenchRecord, Row
from daari_mlx.teacher import Teacher

# A forward over m rows rounds differently from one over 1 row. Below these gaps, in nats, two of plain's
# log-probabilities cannot be told apart: two steps of the 16-bit types at logits of 16 to 32, and for float32
# what sums of some thousand products leave.
GAP_BOUND = {mx.float32: 1e-4, mx.float16: 0.03125, mx.bfloat16: 0.25}
SHOWN = 5  # rows that an error names


@dataclass
class _Run:
    """One answer and its times."""

    ids: list[int] = field(default_factory=list)
    rounds: list[tuple[int, int, int]] = field(default_factory=list)
    statistics: Statistics = field(default_factory=Statistics)
    logprobs: mx.array | None = None  # of the last token
    seconds: float = 0.0
    wall_seconds: float = 0.0


def run_bench(
    teacher: Teacher,
    graph: Graph,
    prompts: list[Prompt],
    *,
    max_tokens: int = 256,
    num_draft_tokens: decode.DraftLength = "auto",
    allow_overlap: bool = False,
    seed: int = 0,
    warmup: int = 1,
    command: str | None = None,
) -> BenchRecord:
    """Decode every prompt greedily with plain mlx-lm and with the graph, taking turns in who goes first.

    Args:
        prompts: at least one, none of which the graph was compiled from.
        max_tokens: the longest answer.
        num_draft_tokens: see :func:`daari_mlx.stream_generate`.
        allow_overlap: take prompts that the graph was compiled from, and say so in the record.
        seed: of MLX's random numbers, set anew before each answer.
        warmup: how many of the prompts both arms decode first, uncounted.
        command: what the user typed, for the record.

    Raises:
        DaariError: before anything runs: a graph of another teacher, a prompt that is too long, an overlap.
    """
    graph = attach(graph, teacher.model, teacher.tokenizer)
    overlap = _check(teacher, graph, prompts, max_tokens, allow_overlap)
    arms = _arms(teacher, graph, max_tokens, num_draft_tokens)
    for prompt in prompts[:warmup]:
        for decoded in arms:
            _timed(decoded, prompt.tokens, seed)
    rows, load, bound = [], os.getloadavg()[0], 0.0
    for number, prompt in enumerate(bar(prompts, desc="benchmark", unit="prompt")):
        runs = {arm: _timed(arms[arm], prompt.tokens, seed) for arm in ((0, 1), (1, 0))[number % 2]}
        bound = _bound(runs[0])
        rows.append(_row(prompt, runs[0], runs[1], plain_first=number % 2 == 0, **_compare(arms[0], prompt, runs[0], runs[1], bound)))
    about = {
        "command": command,
        **_environment(),
        "load_average": load,
        "teacher": {"source": teacher.source, "adapter_path": teacher.adapter_path, "is": describe(teacher.fingerprint())},
        "dtype": str(runs[0].logprobs.dtype).removeprefix("mlx.core."),
        "graph": {"nodes": graph.size, "edges": len(graph.edge_token), "steps": len(graph.step_key), "layer": graph.layer},
        "max_tokens": max_tokens,
        "num_draft_tokens": num_draft_tokens,
        "seed": seed,
        "warmup": min(warmup, len(prompts)),
        "overlap": overlap,
        "drafting_off": runs[1].statistics.drafting_off,
    }
    return BenchRecord(about, bound, tuple(rows))


Arm = Callable[..., Iterator[Any]]


def _arms(teacher: Teacher, graph: Graph, max_tokens: int, num_draft_tokens: decode.DraftLength) -> tuple[Arm, Arm]:
    """Plain and ours as functions of (prompt, prompt_progress_callback[, max_tokens])."""

    def plain(prompt: list[int], limit: int = max_tokens, **options: Any) -> Iterator[Any]:
        return mlx_lm.stream_generate(model=teacher.model, tokenizer=teacher.tokenizer, prompt=prompt, max_tokens=limit, **options)

    def ours(prompt: list[int], **options: Any) -> Iterator[Any]:
        return decode.stream_generate(
            model=teacher.model,
            tokenizer=teacher.tokenizer,
            prompt=prompt,
            max_tokens=max_tokens,
            graph=graph,
            num_draft_tokens=num_draft_tokens,
            **options,
        )

    return plain, ours
