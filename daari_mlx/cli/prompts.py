"""From the text of a prompt to its token ids, as mlx-lm's generate makes them."""

from __future__ import annotations

from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import unescaped
from daari_mlx.ground.stdin import read_all
from daari_mlx.text.template import ChatTemplate

QUERY = "<query>"  # mlx-lm's own mark: what a template puts before it is in the saved cache already


def read_prompt(prompt: str) -> str:
    """The words of ``--prompt``: ``"-"`` reads stdin, ``\\n`` and ``\\t`` are taken as written in a shell."""
    return read_all("prompt") if prompt == "-" else unescaped(prompt)


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
        unused = {
            "--system-prompt": system_prompt,
            "--prefill-response": prefill_response,
            "--chat-template-config": chat_template_config or None,
        }
        if given := [name for name, value in unused.items() if value is not None]:
            why = "--ignore-chat-template was given" if ignore_chat_template else "this tokenizer has none"
            raise DaariError(f"{' and '.join(given)} needs a chat template, and {why}: leave it out.")
        return list(tokenizer.encode(prompt, add_special_tokens=True, verbose=False))
    messages = [] if system_prompt is None else [{"role": "system", "content": system_prompt}]
    messages.append({"role": "user", "content": prompt})
    if prefill_response is not None:
        messages.append({"role": "assistant", "content": prefill_response})
    template = ChatTemplate(tokenizer, chat_template_config)
    render = template.prompt if prefill_response is None else template.begun
    text = render(messages)
    if cached:
        marked = [{**m, "content": QUERY} if m["role"] == "user" else m for m in messages]
        before, mark, _ = render(marked).partition(QUERY)
        if not mark:
            raise DaariError(
                "The chat template leaves the prompt out, so nothing would follow the saved cache: give "
                "--ignore-chat-template, or no --prompt-cache-file."
            )
        text = text[len(before) :]
    return template.ids(text)
