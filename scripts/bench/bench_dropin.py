"""Whether ours can stand where mlx-lm's ``stream_generate`` stands: its chat loop, its server's single path.

Usage: ``python scripts/bench/bench_dropin.py [--out results/dropin.jsonl] [NAME ...]``; prints a line for each
architecture that differs, and the record. Each plays conversations of several turns twice, with mlx-lm's
``stream_generate`` and with ours (a drafter that is right most of the time): as ``mlx_lm.chat`` does, one prompt cache
that is fed only the new turn; and as ``mlx_lm.server`` does for a single request, through ``LRUPromptCache`` with the
prompt and all generated tokens as its key. Answers end by an end token, by the budget, and by the reader's leaving.
Exit status 1 where a token differs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from recording import append, origin

TESTS = Path(__file__).resolve().parents[2] / "tests"
TURNS = ([3, 17, 42, 99, 5, 64, 7], [11, 90], [4, 8, 15, 16, 23, 42], [77])
BUDGET, LEAVES = 14, 9  # tokens of an answer at the most; tokens after which the reader leaves
SAMPLING = {"temp": 0.8, "top_p": 0.95}

Streamer = Callable[..., Iterator[Any]]
Conversation = list[list[int]]  # the answer of each turn


@dataclass
class Player:
    """Plays conversations with one model.

    Args:
        model: it answers.
        stream: mlx-lm's ``stream_generate`` or one like it; a fifth argument names the turn.
        ends: token ids that end an answer.
        sampling: arguments of mlx-lm's ``make_sampler``; None for greedy.
    """

    model: Any
    stream: Streamer
    ends: list[int]
    sampling: dict[str, Any] | None = None

    def chat(self) -> Conversation:
        """As ``mlx_lm.chat``: one cache, and only the new turn's tokens are fed."""
        from mlx_lm.models.cache import make_prompt_cache

        self._seed()
        cache = make_prompt_cache(self.model)
        return [self._answer(turn, prompt, cache) for turn, prompt in enumerate(TURNS)]

    def serve(self) -> Conversation:
        """As ``mlx_lm.server`` answers a single request: the cache nearest to the prompt, kept by all its tokens."""
        from mlx_lm.models.cache import LRUPromptCache, make_prompt_cache

        self._seed()
        kept, text, answers = LRUPromptCache(), [], []
        for turn, prompt in enumerate(TURNS):
            text = [*text, *prompt]
            cache, rest = kept.fetch_nearest_cache("model", text)
            cache = make_prompt_cache(self.model) if cache is None else cache
            answers.append(self._answer(turn, rest, cache))
            text = [*text, *answers[-1]]
            kept.insert_cache("model", list(text), cache)
        return answers

    def _seed(self) -> None:
        import mlx.core as mx

        mx.random.seed(7)

    def _answer(self, turn: int, prompt: list[int], cache: list[Any]) -> list[int]:
        from mlx_lm.sample_utils import make_sampler

        sampler = make_sampler(**self.sampling) if self.sampling else None
        responses = self.stream(self.model, tokenizer(tuple(self.ends)), prompt, BUDGET, turn, cache, sampler)
        said: list[int] = []
        for response in responses:
            said.append(response.token)
            if turn == 2 and len(said) == LEAVES:
                break
        responses.close()  # type: ignore[attr-defined]
        return said


@cache
def tokenizer(ends: tuple[int, ...]) -> Any:
    """One word a token id."""
    from mlx_lm.tokenizer_utils import TokenizerWrapper
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(WordLevel({f"w{k}": k for k in range(128)}, unk_token="w0"))
    return TokenizerWrapper(
        PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0"), eos_token_ids=list(ends) or [127_000]
    )


def plain(model: Any, words: Any, prompt: list[int], budget: int, turn: int, cache: list[Any], sampler: Any) -> Any:
    """mlx-lm's own."""
    from mlx_lm import stream_generate

    return stream_generate(model, words, prompt, budget, prompt_cache=cache, sampler=sampler)


def drafted(truth: Conversation, block: int) -> Streamer:
    """Ours, with a drafter that knows the answers and is wrong now and then."""
    from zoo import Oracle

    from daari_mlx import stream_generate

    def stream(model: Any, words: Any, prompt: list[int], budget: int, turn: int, cache: Any, sampler: Any) -> Any:
        oracle = Oracle([*prompt, *truth[turn], 5, 6, 7, 8], block=block, right=0.8, seed=turn)
        options = {"drafter": oracle, "num_draft_tokens": block} if block else {}
        return stream_generate(model, words, prompt, budget, prompt_cache=cache, sampler=sampler, **options)

    return stream


def end_of(model: Any) -> list[int]:
    """A token that ends the model's first answer within the budget, and not at once."""
    said = Player(model, plain, []).chat()[0]
    late = [token for place, token in enumerate(said) if place >= 4 and token not in said[:place]]
    return late[:1]


def differences(model: Any, blocks: Iterable[int] = (0, 1, 4)) -> list[str]:
    """What differs from mlx-lm's own, one line each."""
    ends, found = end_of(model), []
    for how in ("chat", "serve"):
        for sampling in (None, SAMPLING):
            expected = getattr(Player(model, plain, ends, sampling), how)()
            for block in blocks:
                said = getattr(Player(model, drafted(expected, block), ends, sampling), how)()
                if said != expected:
                    turn = next(k for k, (a, b) in enumerate(zip(said, expected, strict=True)) if a != b)
                    found.append(f"{how}, {'sampled' if sampling else 'greedy'}, drafts of {block}: turn {turn + 1}")
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", metavar="FILE", help="append the record to this file")
    parser.add_argument("names", nargs="*", help="only these (default: all that draft)")
    args = parser.parse_args(argv)
    sys.path[:0] = [str(TESTS), str(TESTS / "teacher")]
    import daari_mlx  # noqa: F401, I001  on Linux it loads a fast BLAS, which must happen before MLX is imported
    from architectures import build, names
    from test_architectures import BROKEN, REFUSED

    from daari_mlx.ground.progress import bar

    tried = [name for name in args.names or names() if name not in BROKEN and name not in REFUSED]
    found = {name: differences(build(name)) for name in bar(tried, desc="architectures", unit="model")}
    for name, lines in found.items():
        for line in lines:
            print(f"{name}: {line}")
    differing = [name for name, lines in found.items() if lines]
    record = {
        "what": "standing where mlx_lm.chat and mlx_lm.server's single path call stream_generate",
        **origin(),
        "architectures": len(tried),
        "identical": len(tried) - len(differing),
        "differing": {name: found[name] for name in differing},
        "ok": not differing,
    }
    print(f"{record['identical']} of {len(tried)} architectures answer as mlx-lm's own loops do")
    if args.out is not None:
        append(record, args.out)
    return int(not record["ok"])


if __name__ == "__main__":
    sys.exit(main())
