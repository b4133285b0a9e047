"""A teacher that says a given text to a given chat: what models do with marks that the tiny teacher never says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from graphs import Scripted
from mlx_lm.tokenizer_utils import TokenizerWrapper, load

from daari_mlx.teacher.load import Teacher
from daari_mlx.text.template import ChatTemplate

TINY = Path(__file__).parents[1] / "tiny_teacher"
ASKED = [{"role": "user", "content": "What is it?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]},
        },
    }
]


def thinking_tokenizer() -> TokenizerWrapper:
    """The tiny teacher's tokenizer with marks of thinking."""
    plain = load(TINY)
    inner = copy.deepcopy(plain._tokenizer)
    inner.add_tokens(["<think>", "</think>"], special_tokens=True)
    parser, start, end = plain.tool_parser, plain.tool_call_start, plain.tool_call_end
    ends = plain.eos_token_ids
    return TokenizerWrapper(inner, type(plain._detokenizer), ends, None, start, end, parser)


def says(text: str, messages: Any = None, tools: Any = None) -> Teacher:
    """A teacher that answers this chat with this text."""
    tokenizer = thinking_tokenizer()
    prompt = ChatTemplate(tokenizer).prompt_ids(messages or ASKED, tools)
    answer = tokenizer.encode(text, add_special_tokens=False)
    model = Scripted([*prompt, *answer, tokenizer.eos_token_id], vocabulary=len(tokenizer))
    return Teacher(model, tokenizer, "scripted")
