"""Chat templates: the one way from messages to text and token ids, for rows, engine, chat and commands alike."""

from __future__ import annotations

import json
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import is_text
from daari_mlx.text.messages import BadInput, called, forms, read_messages, read_tools

NO_TEMPLATE = "the tokenizer has no chat template for 'messages'; use 'prompt' and 'completion'"
OWN_NAMES = {  # what apply_chat_template takes besides variables, and who decides it
    "add_generation_prompt": "a prompt always ends in the header of the answer",
    "continue_final_message": "give --prefill-response to generate",
    "conversation": "the messages are given by themselves",
    "messages": "the messages are given by themselves",
    "tokenize": "the text is tokenised here",
    "return_dict": "token ids are what is taken",
    "return_tensors": "token ids are what is taken",
    "return_assistant_tokens_mask": "token ids are what is taken",
    "tokenizer_kwargs": "the text is tokenised here",
    "sanitize_control_tokens": "the text is tokenised here",
    "padding": "there is one prompt at a time",
    "truncation": "prompts are never cut",
    "max_length": "prompts are never cut",
}


def check_config(config: Any) -> dict[str, Any]:
    """Variables for a chat template, after seeing that a template can have them.

    Args:
        config: None for none. ``tools``, ``documents`` and ``chat_template`` are honoured as mlx-lm honours them.

    Raises:
        DaariError: it is no dict, or has a name that says how templates are applied.
    """
    if config is None:
        return {}
    if not isinstance(config, dict) or not all(isinstance(name, str) for name in config):
        found = json.dumps(config, default=lambda value: type(value).__name__)[:40]
        raise DaariError(f'chat_template_config is {found}: give a dict such as {{"enable_thinking": False}}.')
    if own := [name for name in config if name in OWN_NAMES]:
        why = "; ".join(f"{name!r} ({OWN_NAMES[name]})" for name in own)
        raise DaariError(f"chat_template_config has {why}: leave that out, it is no variable of the template.")
    return dict(config)


class ChatTemplate:
    """A tokenizer's chat template with its variables.

    Args:
        tokenizer: the teacher's, as ``mlx_lm.load`` returns it, or transformers' own.
        config: further variables for the template, e.g. ``{"enable_thinking": False}``; see :func:`check_config`.

    Raises:
        DaariError: see :func:`check_config`; there are variables and no template.
    """

    def __init__(self, tokenizer: Any, config: dict[str, Any] | None = None) -> None:
        if hasattr(tokenizer, "chat_template") and not hasattr(tokenizer, "has_thinking"):
            # a bare one: mlx-lm's wrapper tells the template whether the model thinks
            from mlx_lm.tokenizer_utils import TokenizerWrapper

            tokenizer = TokenizerWrapper(tokenizer)
        self.tokenizer = tokenizer
        self.config = check_config(config)
        if self.config and not tokenizer.has_chat_template:
            raise DaariError(
                f"chat_template_config has {', '.join(map(repr, self.config))}, and this tokenizer has no chat "
                "template to read it: leave it out."
            )

    @property
    def source(self) -> str:
        """What tells this template from another: its text, or the name of the code that renders."""
        code = getattr(self.tokenizer, "_chat_template", None)  # of mlx-lm, for models whose template is no text
        if code is not None:
            return f"{code.__module__}.{code.__qualname__}"
        return json.dumps(getattr(self.tokenizer, "chat_template", None), sort_keys=True, default=str)

    def prompt(self, messages: Any, tools: Any = None) -> str:
        """The text that the teacher answers: the messages and the header of the answer.

        Args:
            messages, tools: see :func:`daari_mlx.text.messages.read_messages` and ``read_tools``.

        Raises:
            BadInput: there is no template, it rejects the messages, or they are malformed.
        """
        return self._render(messages, tools, add_generation_prompt=True)

    def whole(self, messages: Any, tools: Any = None) -> str:
        """The text of a chat whose last message is complete; arguments and errors are those of :meth:`prompt`."""
        return self._render(messages, tools, add_generation_prompt=False)

    def begun(self, messages: Any, tools: Any = None) -> str:
        """The text of a chat whose last message goes on; arguments and errors are those of :meth:`prompt`."""
        return self._render(messages, tools, add_generation_prompt=False, continue_final_message=True)

    def ids(self, text: str) -> list[int]:
        """Token ids of a rendered text, as mlx-lm's server tokenises it: the template wrote what special tokens belong.

        A text longer than the tokenizer's idea of a context is no concern here: whoever counts tells.

        Raises:
            BadInput: it holds half a surrogate pair, which no tokenizer takes.
        """
        if not is_text(text):
            raise BadInput("the messages have bytes that are no UTF-8, or half a surrogate pair")
        return list(self.tokenizer.encode(text, add_special_tokens=False, verbose=False))

    def prompt_ids(self, messages: Any, tools: Any = None) -> list[int]:
        """Token ids of :meth:`prompt`."""
        return self.ids(self.prompt(messages, tools))

    def tools_of(self, tools: Any) -> list[Any] | None:
        """The tools that a template is shown: those that come with the messages, or those of ``config``.

        Raises:
            BadInput: both are there, or they are malformed.
        """
        own, general = read_tools(tools), read_tools(self.config.get("tools"))
        if own and general:
            raise BadInput("'tools' are given twice, with the messages and in chat_template_config: leave one out")
        return own or general

    def _render(self, messages: Any, tools: Any, **how: bool) -> str:
        """The text of the messages in the first form that the template takes and whose calls it prints."""
        if not self.tokenizer.has_chat_template:
            raise BadInput(NO_TEMPLATE)
        read = read_messages(messages)
        names = [name for message in read for name in called(message)]
        options = {**self.config, "tools": self.tools_of(tools), **how}
        found: list[str | Exception] = []
        for form in forms(read):
            try:
                text = str(self.tokenizer.apply_chat_template(form, tokenize=False, **options))
            except Exception as error:  # a template can raise anything
                found.append(error)
                continue
            if all(name in text for name in names):
                return text
            found.append(text)
        if isinstance(found[0], str):
            return found[0]  # some call is left out in every form: whoever needs it looks for it
        reason = " ".join(str(found[0]).split())[:200]
        raise BadInput(f"the chat template rejects the messages: {type(found[0]).__name__}: {reason}") from found[0]
