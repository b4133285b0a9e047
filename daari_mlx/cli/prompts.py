"""From the options of ``generate`` to a prompt as mlx-lm's generate makes it: text, template, saved cache, sampler."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import check_regular
from daari_mlx.show import report
from daari_mlx.text.template import template_failure

if TYPE_CHECKING:
    from daari_mlx.teacher.load import Teacher
    from daari_mlx.text.data import Rows

R = TypeVar("R")

QUERY = "<query>"  # mlx-lm's own mark: what a template puts before it is in the saved cache already


def read_rows(
    read: Callable[..., Rows[R]],
    data: str,
    teacher: Teacher,
    *,
    split: str,
    skip_bad_rows: bool,
    limit: int | None,
    chat_template_config: dict[str, Any] | None,
) -> list[R]:
    """The rows of ``--data`` that fit the teacher; a note tells of those that were skipped.

    Args:
        read: ``read_prompts`` or ``read_sequences``, whose further arguments and errors these are.
    """
    rows = read(
        data,
        teacher.tokenizer,
        split=split,
        skip_bad_rows=skip_bad_rows,
        max_length=teacher.context_length,
        limit=limit,
        chat_template_config=chat_template_config,
    )
    if skipped := rows.skipped_note():
        report.note(f"note: {skipped}")
    return rows.items


def read_prompt(prompt: str) -> str:
    """The words of ``--prompt``: ``"-"`` reads stdin, ``\\n`` and ``\\t`` are taken as written in a shell."""
    return sys.stdin.read() if prompt == "-" else _unescaped(prompt)


def read_stops(stops: list[str] | None) -> list[str]:
    """The words of ``--stop``, with ``\\n`` and ``\\t`` as in ``--prompt``."""
    return [_unescaped(stop) for stop in stops or []]


def _unescaped(text: str) -> str:
    return text.replace("\\n", "\n").replace("\\t", "\t")


def encode(
    tokenizer: Any,
    prompt: str,
    *,
    system_prompt: str | None = None,
    prefill_response: str | None = None,
    ignore_chat_template: bool = False,
    chat_template_config: dict[str, Any] | None = None,
    cached: bool = False,
) -> list[int]:
    """Token ids, equal to those that mlx-lm's generate makes of the same options.

    Args:
        cached: leave out what the template puts before the prompt, since a saved cache holds it.

    Raises:
        DaariError: an empty prompt, a template that rejects the messages, options that only a template can honour.
    """
    templated = not ignore_chat_template and tokenizer.has_chat_template
    if not (prompt.strip() if templated else prompt):
        raise DaariError("The prompt is empty: give --prompt some text, or pipe it in with --prompt -.")
    if not templated:
        unused = {"--system-prompt": system_prompt, "--prefill-response": prefill_response}
        if given := [name for name, value in unused.items() if value is not None]:
            why = "--ignore-chat-template was given" if ignore_chat_template else "this tokenizer has none"
            raise DaariError(f"{' and '.join(given)} needs a chat template, and {why}: leave it out.")
        return list(tokenizer.encode(prompt, add_special_tokens=True, verbose=False))
    messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    messages.append({"role": "user", "content": prompt})
    if prefill_response is not None:
        messages.append({"role": "assistant", "content": prefill_response})
    text = _render(tokenizer, messages, prefill_response is not None, chat_template_config or {})
    if cached:
        marked = [{**m, "content": QUERY} if m["role"] == "user" else m for m in messages]
        probe = _render(tokenizer, marked, prefill_response is not None, chat_template_config or {})
        text = text[probe.index(QUERY) :]
    return list(tokenizer.encode(text, add_special_tokens=False, verbose=False))


def _render(tokenizer: Any, messages: list[dict[str, str]], prefilled: bool, config: dict[str, Any]) -> str:
    try:
        return str(
            tokenizer.apply_chat_template(
                messages,
                tokenize=False,
                continue_final_message=prefilled,
                add_generation_prompt=not prefilled,
                **config,
            )
        )
    except Exception as error:  # a template can raise anything
        raise template_failure(error) from error


def add_eos_tokens(tokenizer: Any, tokens: list[str]) -> None:
    """Let each of ``tokens`` (a token's text, or its id) end an answer too.

    Raises:
        DaariError: the tokenizer has no such token.
    """
    known = set(tokenizer.get_vocab().values()) if tokens else set()
    for token in tokens:
        found = int(token) if token.isdecimal() else tokenizer.convert_tokens_to_ids(token)
        unknown = found is None or (found == tokenizer.unk_token_id and token not in (str(found), tokenizer.unk_token))
        if unknown or found not in known:
            raise DaariError(
                f"--extra-eos-token {token!r} is not a token of this tokenizer: give its text as one token, or its id."
            )
        tokenizer.add_eos_token(str(found))


def open_prompt_cache(path: str, kv_bits: int | None, kv_group_size: int) -> tuple[list[Any], str]:
    """A prompt cache that ``mlx_lm.cache_prompt`` saved, and the model that it belongs to.

    Raises:
        DaariError: it cannot be read, or is quantised in another way than asked for.
    """
    from mlx_lm.models.cache import QuantizedKVCache, load_prompt_cache

    check_regular(path, "prompt cache", instead="Give a file that mlx_lm.cache_prompt saved.")
    try:
        cache, metadata = load_prompt_cache(path, return_metadata=True)
        model = str(metadata["model"])
        json.loads(metadata["tokenizer_config"])
    except (RuntimeError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise DaariError(
            f"{path} is no prompt cache of mlx_lm.cache_prompt: {type(error).__name__}: {error}"
        ) from error
    quantised = next((c for c in cache if isinstance(c, QuantizedKVCache)), None)
    if quantised is not None:
        found = (quantised.bits, quantised.group_size)
        if (kv_bits or found[0], kv_group_size) != found:
            raise DaariError(
                f"{path} is quantised to {found[0]} bits in groups of {found[1]}: give --kv-bits {found[0]} "
                f"--kv-group-size {found[1]}, or another --prompt-cache-file."
            )
    return cache, model


def seed(value: int | None) -> None:
    """Seed MLX's random numbers; None leaves them random."""
    if value is not None:
        import mlx.core as mx

        mx.random.seed(value)


def make_processors(tokenizer: Any, json_schema: dict[str, Any] | None) -> list[Any] | None:
    """The logits processors that the options ask for; None for none.

    Raises:
        DaariError: see :func:`daari_mlx.decode.grammar.json_schema_processor`.
    """
    if json_schema is None:
        return None
    from daari_mlx.decode.grammar import json_schema_processor

    return [json_schema_processor(tokenizer, json_schema)]


def make_sampler(
    tokenizer: Any,
    *,
    temp: float,
    top_p: float,
    min_p: float = 0.0,
    min_tokens_to_keep: int = 1,
    top_k: int = 0,
    xtc_probability: float = 0.0,
    xtc_threshold: float = 0.1,
) -> Any:
    """mlx-lm's sampler, with the tokens that XTC spares as its generate chooses them."""
    from mlx_lm.sample_utils import make_sampler as make

    return make(
        temp=temp,
        top_p=top_p,
        min_p=min_p,
        min_tokens_to_keep=min_tokens_to_keep,
        top_k=top_k,
        xtc_probability=xtc_probability,
        xtc_threshold=xtc_threshold,
        xtc_special_tokens=tokenizer.encode("\n") + list(tokenizer.eos_token_ids),
    )
