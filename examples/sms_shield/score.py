"""How well the teacher does the job on messages that it has not seen, before and after it was tuned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from messages import FIELDS, read_answer

if TYPE_CHECKING:
    from daari_mlx.teacher.load import Teacher

MAX_TOKENS = 48  # the longest answer takes 40


def score(teacher_path: str, adapter_path: str, data: Path) -> dict[str, Any]:
    """Both teachers on all rows of ``data``, greedy answers.

    Returns:
        ``rows``, their number; ``base``, the untuned teacher's hash of weights; and under ``before`` and ``after`` the
        figures of :func:`count`, each with the ``loss`` in nats per answer token.
    """
    from daari_mlx.teacher.load import load_teacher

    rows = [json.loads(line)["messages"] for line in data.read_text(encoding="utf-8").splitlines()]
    found: dict[str, Any] = {"rows": len(rows)}
    for name, adapter in (("before", None), ("after", adapter_path)):
        teacher = load_teacher(teacher_path, adapter_path=adapter)
        print(f"{name}: the loss and the answers on {len(rows)} rows of {data}", flush=True)
        found.setdefault("base", teacher.fingerprint()["weights"])
        expected = [messages[-1]["content"] for messages in rows]
        found[name] = {"loss": _loss(teacher, rows), **count(_answers(teacher, rows), expected)}
    return found


def count(texts: list[str], expected: list[str]) -> dict[str, int]:
    """How many answers are right: ``json``, the form that was asked for; ``answer``, all of it; and each field."""
    right = dict.fromkeys(("json", *FIELDS, "answer"), 0)
    for text, wanted in zip(texts, expected, strict=True):
        answer, true = read_answer(text), read_answer(wanted)
        if answer is None or true is None:
            continue
        right["json"] += 1
        right["answer"] += answer == true
        for field in FIELDS:
            right[field] += answer[field] == true[field]
    return right


def _loss(teacher: Teacher, rows: list[Any]) -> float:
    """What ``mlx_lm.lora --test --mask-prompt`` reports."""
    from mlx_lm.tuner.datasets import CacheDataset, ChatDataset
    from mlx_lm.tuner.trainer import evaluate

    chats = ChatDataset([{"messages": messages} for messages in rows], teacher.tokenizer, mask_prompt=True)
    return float(
        evaluate(model=teacher.model, dataset=CacheDataset(chats), batch_size=4, num_batches=-1, max_seq_length=192)
    )


def _answers(teacher: Teacher, rows: list[Any]) -> list[str]:
    from mlx_lm import batch_generate

    prompts = [
        teacher.tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        for messages in rows
    ]
    answered = batch_generate(model=teacher.model, tokenizer=teacher.tokenizer, prompts=prompts, max_tokens=MAX_TOKENS)
    return list(answered.texts)
