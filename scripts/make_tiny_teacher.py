"""Train the tiny teacher of the unit tests: a llama of under 1 MB that answers text messages with JSON.

It is made from nothing but the project's own corpus (``make_sms_corpus``). One command makes it again, in a
few minutes: ``python scripts/make_tiny_teacher.py tests/tiny_teacher``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# For matrices this small, threads cost more than they give; the library reads this when it is loaded.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from make_sms_corpus import CATEGORIES, Message, Row, content_key, make_rows

import daari_mlx  # noqa: F401  on Linux it loads a fast BLAS, which must happen before MLX is imported
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.progress import bar

SEED = 7
CORPUS_SEED = 0  # of the corpus whose held-out rows measure the teacher
N_TRAIN, N_TEST = 3200, 160
BATCH, EPOCHS, PEAK_RATE = 16, 6, 4e-3
VOCAB = 640
END, START, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SHORT_SYSTEM = "Sort the message. Answer in JSON."

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": VOCAB,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

CHAT_TEMPLATE = r"""
{%- set first = 0 %}
{%- if messages[0].role == 'system' or tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {%- set first = 1 %}
        {{- messages[0].content }}
    {%- endif %}
    {%- if tools %}
        {{- '\n<tools>\n' }}
        {%- for tool in tools %}
            {{- tool | tojson + '\n' }}
        {%- endfor %}
        {{- '</tools>\nCall one by <tool_call>{"name": ..., "arguments": ...}</tool_call>' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages[first:] %}
    {{- '<|im_start|>' + message.role + '\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {%- set tool_call = call.function or call %}
        {{- '<tool_call>\n{"name": "' + tool_call.name + '", "arguments": ' }}
        {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
        {{- '}\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
""".strip()


def write_tokenizer(folder: Path, texts: list[str]) -> None:
    """Train a byte-level BPE on ``texts`` and write it; any text round-trips, since every byte is a token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[END, START, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    if tokenizer.get_vocab_size() != VOCAB:
        raise DaariError(f"the corpus gave {tokenizer.get_vocab_size()} tokens, need {VOCAB}")
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        "bos_token": START,
        "eos_token": EOS,
        "pad_token": END,
        "unk_token": END,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", config)


def split_rows() -> tuple[list[Row], list[Row]]:
    """Training and test rows; no message of the test rows is among the training rows."""
    test = make_rows(N_TEST, seed=CORPUS_SEED)
    seen = {content_key(row["messages"][1]["content"]) for row in test}
    train = [row for row in make_rows(N_TRAIN, seed=SEED) if content_key(row["messages"][1]["content"]) not in seen]
    return train, test


def vary_system(rows: list[Row]) -> list[Row]:
    """The same rows with the corpus's (long) system prompt, a short one, or none: any of them works."""
    rng = random.Random(SEED)
    varied: list[Row] = []
    for row in rows:
        system, *rest = row["messages"]
        short: Message = {"role": "system", "content": SHORT_SYSTEM}
        first = rng.choices([[system], [short], []], weights=[1, 1, 2])[0]
        varied.append({"messages": first + rest})
    return varied


def train_model(folder: Path, rows: list[Row]) -> None:
    """Train the llama on the answers of ``rows`` with mlx-lm's trainer; write its weights to ``folder``."""
    import mlx.core as mx
    from mlx.optimizers import AdamW, cosine_decay, join_schedules, linear_schedule
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs
    from mlx_lm.tuner.datasets import ChatDataset
    from mlx_lm.tuner.trainer import TrainingArgs, train
    from mlx_lm.utils import load_tokenizer

    np.random.seed(SEED)  # the trainer shuffles its batches with numpy's global generator
    mx.random.seed(SEED)
    chats = ChatDataset(rows, load_tokenizer(folder), mask_prompt=True)
    examples = [chats.process(row) for row in bar(rows, desc="tokenising", unit="row")]
    steps = EPOCHS * (len(rows) // BATCH)
    rate = join_schedules([linear_schedule(0, PEAK_RATE, steps // 20), cosine_decay(PEAK_RATE, steps)], [steps // 20])
    model = Model(ModelArgs.from_dict(CONFIG))
    with tempfile.TemporaryDirectory() as scratch:
        train(
            model=model,
            optimizer=AdamW(learning_rate=rate, weight_decay=0.01, betas=[0.9, 0.98]),
            train_dataset=examples,
            args=TrainingArgs(
                batch_size=BATCH,
                iters=steps,
                steps_per_report=50,
                steps_per_save=steps + 1,
                max_seq_length=512,
                adapter_file=str(Path(scratch) / "weights.safetensors"),
            ),
        )
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})


def measure(folder: Path, rows: list[Row]) -> dict[str, float]:
    """Greedy answers to ``rows``: the shares that parse, are right, quote and match exactly."""
    from mlx_lm import generate, load

    model, tokenizer, *_ = load(str(folder))
    hits = dict.fromkeys(("valid_json", "category", "quoted", "exact"), 0)
    for row in bar(rows, desc="measuring", unit="answer"):
        *prompt, wanted = row["messages"]
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True)
        text = generate(model=model, tokenizer=tokenizer, prompt=ids, max_tokens=120)
        try:
            answer = json.loads(text)  # what runs into max_tokens is cut off and does not parse
        except ValueError:
            continue
        hits["valid_json"] += set(answer) == {"label", "category", "risk", "evidence"}
        hits["category"] += answer.get("category") == json.loads(wanted["content"])["category"]
        hits["quoted"] += answer.get("evidence", "?") in prompt[-1]["content"]
        hits["exact"] += text == wanted["content"]
    return {name: count / len(rows) for name, count in hits.items()}


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, metavar="OUT", help="the folder to write, e.g. tests/tiny_teacher")
    parser.add_argument("--measure-only", action="store_true", help="measure the teacher in OUT, train nothing")
    args = parser.parse_args(argv)
    train_rows, test_rows = split_rows()
    print(f"{len(train_rows)} training and {len(test_rows)} test rows in {len(CATEGORIES)} categories")
    try:
        if not args.measure_only:
            args.out.mkdir(parents=True, exist_ok=True)
            rows = vary_system(train_rows)
            write_tokenizer(args.out, [m["content"] for row in rows for m in row["messages"]])
            _write_json(args.out / "config.json", CONFIG)
            train_model(args.out, rows)
        for name, share in measure(args.out, test_rows).items():
            print(f"{name:12} {share:6.1%} of {len(test_rows)} unseen messages")
    except (DaariError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
