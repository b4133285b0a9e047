"""Record streams, with drafts and one forward for an answer's states: the answers of bench --save-streams, sooner.

    python scripts/bench/record_streams.py DATA OUT --model MODEL [--adapter-path PATH] [--train 330] [--test 40]

DATA holds ``train.jsonl`` and ``test.jsonl``; OUT becomes a folder of ``NAME.TEACHER.train.safetensors`` and
``NAME.TEACHER.test.safetensors``, NAME being that of DATA, TEACHER ``tuned`` with an adapter and ``base`` without.
``bench --save-streams`` makes a forward a token, as mlx-lm does. Here the teacher's answer is drafted by what it
answered before, and its states are those of one more forward over the whole answer; they differ from a token's own by
rounding. What all prompts of a file begin with is read once.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import daari_mlx  # noqa: F401  brings a real BLAS before MLX loads
from daari_mlx.decode.generate import stream_generate
from daari_mlx.ground.progress import bar
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.start import learner_for
from daari_mlx.measure.streams import Stream, Streams, likeliest, save_streams
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.teacher.tap import tap_model
from daari_mlx.text.data import Prompt, read_prompts
from daari_mlx.text.identity import prompt_key
from daari_mlx.text.prefixes import common_length


def record(teacher: Teacher, prompts: Sequence[Prompt], max_tokens: int, learner: Learner) -> Streams:
    """The teacher's greedy answers, and the final states that they were chosen from."""
    from mlx_lm.models.cache import make_prompt_cache

    first = prompts[0].tokens
    shared = min(min(common_length(first, p.tokens), len(p.tokens) - 2) for p in prompts)
    begun = make_prompt_cache(teacher.model)
    if shared:
        read(teacher, first[:shared], begun)
    items = []
    with bar(total=len(prompts), desc="streams", unit="prompt") as shown:
        for prompt in prompts:
            cache = copy.deepcopy(begun)
            answer = [
                response.token
                for response in stream_generate(
                    teacher.model,
                    teacher.tokenizer,
                    prompt.tokens[shared:],
                    max_tokens,
                    prompt_cache=cache,
                    earlier=prompt.tokens[:shared],
                    learn=learner,
                )
            ]
            items.append(look_back(teacher, prompt, answer, cache))
            shown.update()
    ends = tuple(sorted(teacher.tokenizer.eos_token_ids))
    return Streams(tuple(items), max_tokens, teacher.context_length, ends, teacher.fingerprint())


def read(teacher: Teacher, tokens: list[int], cache: list[Any]) -> Any:
    """``(m, V)`` logits after each of ``m`` tokens; the cache holds them afterwards."""
    import mlx.core as mx

    logits = teacher.model(mx.array([tokens], dtype=mx.uint32), cache=cache)[0].astype(mx.float32)
    mx.eval(logits, [c.state for c in cache])
    return logits


def look_back(teacher: Teacher, prompt: Prompt, answer: list[int], cache: list[Any]) -> Stream:
    """One more forward over the answer, of which the cache holds all."""
    import mlx.core as mx
    from mlx_lm.models.cache import trim_prompt_cache

    tokens = prompt.tokens + answer
    rows = len(answer) + 1
    trimmed = trim_prompt_cache(cache, rows + 1)
    if trimmed != rows + 1:
        raise SystemExit("This teacher's cache cannot forget: record its streams by bench --save-streams.")
    tap, _ = tap_model(teacher.model, "final")
    with tap.reading() as seen:
        logits = np.array(read(teacher, tokens[len(prompt.tokens) - 2 : -1], cache))
    states = np.array(seen[-1][0].astype(mx.float32))
    said = logits.argmax(axis=1)[1:].tolist()
    if said != answer:
        print(f"{sum(a != b for a, b in zip(said, answer, strict=True))} tokens of a row are chosen by rounding")
    top = np.stack([likeliest(row) for row in logits])
    return Stream(tokens, len(prompt.tokens), {"final": states}, top, prompt_key(prompt.tokens, prompt.identity))


def main() -> None:
    """Record both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--adapter-path")
    parser.add_argument("--train", type=int, default=330)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    teacher = load_teacher(args.model, adapter_path=args.adapter_path)
    learner, kind = learner_for(teacher.model, teacher.tokenizer), "tuned" if args.adapter_path else "base"
    args.out.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", args.train), ("test", args.test)):
        prompts = read_prompts(args.data / f"{part}.jsonl", teacher.tokenizer, limit=count).items
        path = args.out / f"{args.data.name}.{kind}.{part}.safetensors"
        save_streams(record(teacher, prompts, args.max_tokens, learner), path)
        print(path)


if __name__ == "__main__":
    main()
