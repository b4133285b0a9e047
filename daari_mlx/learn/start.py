"""A learner for a loaded teacher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.nn as nn

from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.learning import LOG, learnt_folder
from daari_mlx.learn.fold import nothing_known
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.prior import prior
from daari_mlx.learn.store import Store
from daari_mlx.teacher.fingerprint import describe, differences, fingerprint
from daari_mlx.teacher.kept import unchanged
from daari_mlx.teacher.tap import FINAL, tap_model, vocabulary_of


def learner_for(
    model: nn.Module,
    tokenizer: Any,
    *,
    graph: Graph | None = None,
    path: str | Path | None = None,
    about: dict[str, Any] | None = None,
    **options: Any,
) -> Learner:
    """A learner for the answers of a teacher.

    Args:
        model, tokenizer: as ``mlx_lm.load`` gives them.
        graph: a compiled graph of this teacher to begin with; None begins with nothing.
        path: where the graph is kept, and beside it what it is made of, so that another process can go on; a graph that
            lies there is begun with. None keeps nothing.
        about: the teacher's fingerprint with where it came from, as :meth:`daari_mlx.teacher.load.Teacher.fingerprint`
            gives it; None reads it off the model alone.
        options: those of :class:`daari_mlx.learn.learner.Learner`.

    Raises:
        DaariError: a graph, or a log, of another teacher; a model whose states cannot be read; a path where another
            process learns.
    """
    base = None if graph is None else attach(graph, model, tokenizer)
    if path is None:
        return Learner(base or _nothing(model, tokenizer, about), **options)
    store = Store(path)
    try:
        if base is not None:
            store.begin_with(base)
        if store.base is not None:
            base = attach(store.base, model, tokenizer)
        if store.graph is not None:
            attach(store.graph, model, tokenizer)
        if store.about is not None:
            _check_log(store, model, tokenizer)
        return Learner(base or _nothing(model, tokenizer, about), store=store, **options)
    except BaseException:
        store.close()
        raise


def learner_at(path: str | Path, **options: Any) -> Learner:
    """The learner of a path where something was learnt, without its teacher: to fold its log.

    Args:
        path: of the graph.
        options: those of :class:`daari_mlx.learn.learner.Learner`.

    Raises:
        DaariError: nothing was learnt there; another process learns there.
    """
    if not (learnt_folder(path) / LOG).is_file():
        raise DaariError(f"Nothing was learnt at {path}: give the path that --learn was given.")
    store = Store(path)
    try:
        log = store.open({})
        base = store.base
        if base is None:
            if not log.answers:
                raise DaariError(f"Nothing was learnt at {path} yet, its log has no answer: answer something first.")
            teacher = log.about["teacher"]
            width = log.answers[0].states.shape[1] if log.projection is None else len(log.projection.mean)
            base = nothing_known(width, int(teacher["vocab_size"]), log.about["layer"], prior())
            base = replace(base, teacher=teacher)
        return Learner(base, store=store, **options)
    except BaseException:
        store.close()
        raise


def _nothing(model: nn.Module, tokenizer: Any, about: dict[str, Any] | None) -> Graph:
    """What is known of a teacher without any text."""
    with unchanged(model):
        _, width = tap_model(model, FINAL)
        vocabulary = vocabulary_of(model)
        teacher = about or fingerprint(model, tokenizer)
    graph = nothing_known(width, max(vocabulary, int(teacher["vocab_size"])), FINAL, prior())
    return replace(graph, teacher=teacher)


def _check_log(store: Store, model: nn.Module, tokenizer: Any) -> None:
    theirs, ours = dict((store.about or {}).get("teacher") or {}), fingerprint(model, tokenizer)
    if found := differences(theirs, ours):
        raise DaariError(
            f"What is learnt in {store.path} is of another teacher (they differ in: {', '.join(found)}).\n"
            f"  learnt: {describe(theirs)}\n  loaded: {describe(ours)}\n"
            "Give another path to --learn."
        )


def check_teacher(learner: Learner, model: nn.Module, tokenizer: Any) -> None:
    """See that a learner learns from this very teacher.

    Raises:
        DaariError: it is another's; the learner was closed.
    """
    learner.check_open()
    try:
        attach(learner.base, model, tokenizer)
    except DaariError as error:
        raise DaariError(f"This learner belongs to another teacher: make a learner for this model. {error}") from None
