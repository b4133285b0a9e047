"""What single architectures of mlx-lm need: which cannot be verified in blocks, how far, and which to keep cheap.

Everywhere else a block of rows gives what the same rows give one at a time, whatever the architecture.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from daari_mlx.teacher.kept import keep

ABSORBED_ROWS = 64  # rows from which expanding the cache costs less; at the usual sizes it does from about 170 on

# classes of mlx_lm.models whose rows come out differently in a block
_BLOCKS_DIFFER = {
    "olmo.TransformerBlock": "mlx-lm adds the name of its mask to the scores, so every forward of several tokens fails",
    "phi3small.Attention": "its sparse layers add a mask of true and false, so a row sees other tokens in a block",
}
# classes whose rows come out differently beside a row of another length, where a short trial would not show it
_ROWS_DIFFER = {
    "minimax_m3_vl.Attention": "its sparse attention counts the blocks nearest to a token from the end of the longest "
    "row, so in a long context a shorter row sees other tokens",
}
_ATTRIBUTE = "_daari_opened"  # where a model keeps which of its modules were opened
_ours = threading.local()


def refuses_blocks(model: nn.Module) -> str | None:
    """Why rows of several tokens cannot stand for single ones in this model, or None where they can."""
    return keep(model, "refuses_blocks", lambda: _refusal(model))


def _refusal(model: nn.Module) -> str | None:
    if getattr(model, _ATTRIBUTE, None) is not None:
        _open(model)  # modules that came since, which no forward looks for
    for name in _classes(model):
        if name in _BLOCKS_DIFFER:
            return f"{model_type(model)}: {_BLOCKS_DIFFER[name]}"
    for module in _unopened(model):
        return (
            f"{model_type(model)}: a block makes {type(module).__name__} expand its whole latent cache, and how to "
            "avoid that is not known for this version of mlx-lm"
        )
    return None


def refuses_unlike_rows(model: nn.Module) -> str | None:
    """Why rows of unlike lengths cannot share a forward of this model, as far as it is known by name, or None."""
    for name in _classes(model):
        if name in _ROWS_DIFFER:
            return f"{model_type(model)}: {_ROWS_DIFFER[name]}"
    return None


def mask_axes(model: nn.Module) -> int:
    """How many axes of 1 its attention wants between the rows and the columns of a mask ``(B, …, m, tokens)``.

    gemma2 computes its scores by groups of heads, ``(B, groups, heads, m, tokens)``.
    """
    grouped = (m.repeats > 1 for _, m in model.named_modules() if "gemma2.Attention" in _names(m))
    return 2 if any(grouped) else 1


def blocks_until(model: nn.Module) -> int | None:
    """How many tokens the cache may hold after a block for its rows to equal single ones; None for no limit.

    plamo3 lets a row see one token more in a block than its sliding window keeps; a rotary embedding with dynamic
    scaling turns every row of a forward by the length at its end, once that exceeds the trained one.
    """
    return keep(model, "blocks_until", lambda: _block_limit(model))


def _block_limit(model: nn.Module) -> int | None:
    limits = []
    for _, module in model.named_modules():
        names = _names(module)
        if "rope_utils.DynamicNTKScalingRoPE" in names:
            limits.append(int(module.max_position_embeddings))
        if "plamo3.Plamo3Decoder" in names and module.swa_idx is not None:
            limits.append(int(module.window_size))
    return min(limits, default=None)


def forward_rows(model: nn.Module, tokens: mx.array, cache: list[Any] | None) -> mx.array:
    """One forward over a block of rows; latent attention stays on the path that it takes for a single row.

    Such attention (multi-head latent attention with an absorbed form) expands its whole cache to keys and values as
    soon as there are two rows, which costs many times a single row in a long context. The same formula that it uses
    for one row holds for several. Nothing changes for forwards that come another way.

    Args:
        model: the teacher.
        tokens: ``(1, m)`` token ids.
        cache: its prompt cache.

    Returns:
        ``(1, m, V)`` logits.
    """
    _open_all(model)
    outer = getattr(_ours, "rows", False)
    _ours.rows = True
    try:
        return model(tokens, cache=cache)
    finally:
        _ours.rows = outer


def close_all(model: nn.Module) -> None:
    """Give every module that :func:`forward_rows` opened its own class back."""
    for module, cls in getattr(model, _ATTRIBUTE, None) or ():
        module.__class__ = cls
    object.__setattr__(model, _ATTRIBUTE, None)


def _open_all(model: nn.Module) -> None:
    if getattr(model, _ATTRIBUTE, None) is None:
        _open(model)


def _open(model: nn.Module) -> None:
    """Open what is not open yet, and forget what is no longer in the model."""
    known = {id(module): (module, cls) for module, cls in getattr(model, _ATTRIBUTE, None) or ()}
    opened = []
    for _, module in model.named_modules():
        rewritten = _absorbed(type(module)) if _is_latent(module) else None
        if id(module) in known:
            opened.append(known[id(module)])
        elif rewritten is not None:
            opened.append((module, type(module)))
            _choose_by_rows(module, rewritten)
    object.__setattr__(model, _ATTRIBUTE, opened)


def _unopened(model: nn.Module) -> list[nn.Module]:
    """Latent attention whose source is not as expected, so that small blocks cannot be kept on the absorbed path."""
    known = {id(module) for module, _ in getattr(model, _ATTRIBUTE, None) or ()}
    latent = [module for _, module in model.named_modules() if _is_latent(module) and id(module) not in known]
    return [module for module in latent if _absorbed(type(module)) is None]


def _is_latent(module: nn.Module) -> bool:
    return hasattr(module, "embed_q") and hasattr(module, "unembed_out")


def _choose_by_rows(module: nn.Module, rewritten: Callable[..., Any]) -> None:
    """Give this one instance a subclass that takes the absorbed form for small blocks of our own forwards."""
    cls = type(module)

    def call(self: nn.Module, x: mx.array, *args: Any, **kwargs: Any) -> Any:
        if not getattr(_ours, "rows", False) or not 1 < x.shape[1] <= ABSORBED_ROWS:
            return cls.__call__(self, x, *args, **kwargs)
        if "causal" in (a for a in (*args, *kwargs.values()) if isinstance(a, str)):
            mask = _causal_mask(x.shape[1], kwargs.get("cache", args[-1] if args else None))
            args = tuple(mask if isinstance(a, str) else a for a in args)
            kwargs = {name: mask if isinstance(a, str) else a for name, a in kwargs.items()}
        return rewritten(self, x, *args, **kwargs)

    module.__class__ = type(cls.__name__, (cls,), {"__call__": call})


def _causal_mask(rows: int, cache: Any) -> mx.array:
    """``(rows, tokens)``: what the mask named "causal" stands for; the absorbed form needs it spelt out."""
    from mlx_lm.models.base import create_causal_mask

    if cache is None:
        return create_causal_mask(rows)
    return cache.make_mask(rows, return_array=True, window_size=None)


def _absorbed(cls: type) -> Callable[..., Any] | None:
    """``cls.__call__`` with its branches for one row opened to small blocks; None where they are not as expected."""
    return _rewritten(cls.__call__)


@functools.cache
def _rewritten(call: Callable[..., Any]) -> Callable[..., Any] | None:
    if not inspect.isfunction(call) or call.__code__.co_freevars:
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(call)))
    except (OSError, SyntaxError):
        return None
    opener = _Opener()
    tree = ast.fix_missing_locations(opener.visit(tree))
    if opener.seen != {"embed_q", "unembed_out"}:
        return None
    found: dict[str, Any] = {}
    exec(compile(tree, inspect.getfile(call), "exec"), call.__globals__, found)
    return found[call.__name__]


class _Opener(ast.NodeTransformer):
    """Turns ``if L == 1`` into ``if L <= ABSORBED_ROWS`` where the branch maps queries or outputs, nowhere else."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        match node.test:
            case ast.Compare(left=ast.Name(), ops=[ast.Eq()], comparators=[ast.Constant(value=1)]):
                inside = {n.attr for part in node.body for n in ast.walk(part) if isinstance(n, ast.Attribute)}
                maps = inside & {"embed_q", "unembed_out"}
                if maps:
                    self.seen |= maps
                    node.test = ast.Compare(node.test.left, [ast.LtE()], [ast.Constant(ABSORBED_ROWS)])
        return node


def model_type(model: nn.Module) -> str:
    """The name of the model's architecture."""
    return str(getattr(model, "model_type", None) or type(model).__module__.rsplit(".", 1)[-1])


def _classes(model: nn.Module) -> set[str]:
    return {name for _, module in model.named_modules() for name in _names(module)}


def _names(module: nn.Module) -> list[str]:
    """The module's classes in mlx_lm.models, as ``file.Class``; its own class may be a hooked copy of one of them."""
    prefix = "mlx_lm.models."
    return [
        f"{cls.__module__.removeprefix(prefix)}.{cls.__name__}"
        for cls in type(module).__mro__
        if cls.__module__.startswith(prefix)
    ]
