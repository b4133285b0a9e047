"""The options of an answer as records: how tokens are chosen, how long the answer may be, how the cache is kept.

Names and defaults are mlx-lm's. A record is made once, where the options come in, and handed on whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from daari_mlx.ground.option import Option, check_fields, number, unescaped, whole

DraftLength = int | Literal["auto"]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from the teacher's probabilities; at temperature 0 it is the likeliest one."""

    temp: Annotated[float, number("Sampling temperature.", 0.0)] = 0.0
    top_p: Annotated[float, number("Sampling top-p.", 0.0, 1.0)] = 1.0
    min_p: Annotated[float, number("Sampling min-p.", 0.0, 1.0)] = 0.0
    top_k: Annotated[int, number("Sampling top-k; 0: all.", 0)] = 0
    xtc_probability: Annotated[float, number("Probability of XTC sampling to happen each next token.", 0.0, 1.0)] = 0.0
    xtc_threshold: Annotated[float, number("Probability that a token needs to be taken out by XTC.", 0.0, 0.5)] = 0.1
    min_tokens_to_keep: Annotated[int, number("Minimum tokens to keep for min-p sampling.", 1)] = 1
    seed: Annotated[int | None, number("Seed of the sampling.", 0, 2**64 - 1)] = None

    def __post_init__(self) -> None:
        """See that each is one that has a meaning."""
        check_fields(self)

    def sampler(self, tokenizer: Any) -> Any:
        """mlx-lm's sampler; the tokens that XTC spares are those that its ``generate`` chooses."""
        from mlx_lm.sample_utils import make_sampler

        options = {name: value for name, value in vars(self).items() if name != "seed"}
        return make_sampler(
            **{**options, "temp": float(self.temp)},  # MLX takes no whole number beyond 64 bits
            xtc_special_tokens=tokenizer.encode("\n") + list(tokenizer.eos_token_ids),
        )

    def start(self) -> None:
        """Seed MLX's random numbers; without a seed they stay random."""
        if self.seed is not None:
            import mlx.core as mx

            mx.random.seed(self.seed)


MOST_CONTEXT = 2**31 - 1  # tokens that a penalty looks back: MLX takes no larger index


@dataclass(frozen=True)
class Penalties:
    """What tokens lose that the text has already; arguments of mlx-lm's ``make_logits_processors``."""

    presence_penalty: Annotated[float | None, number("Taken off a token that is there.", -2, 2)] = None
    presence_context_size: Annotated[int, number("Tokens that this looks back.", 1, MOST_CONTEXT)] = 20
    frequency_penalty: Annotated[float | None, number("Taken off a token each time it is there.", -2, 2)] = None
    frequency_context_size: Annotated[int, number("Tokens that this looks back.", 1, MOST_CONTEXT)] = 20
    repetition_penalty: Annotated[float | None, number("Divides the logit of a token that is there.", 0)] = None
    repetition_context_size: Annotated[int, number("Tokens that this looks back.", 1, MOST_CONTEXT)] = 20

    def __post_init__(self) -> None:
        """See that each is one that has a meaning."""
        check_fields(self)

    def processors(self, logit_bias: dict[int, float] | None = None) -> list[Any]:
        """mlx-lm's processors of these, and of a bias of single tokens."""
        from mlx_lm.sample_utils import make_logits_processors

        given = {
            name: float(value) if name.endswith("_penalty") and value is not None else value
            for name, value in vars(self).items()
        }
        return list(make_logits_processors(logit_bias, **given))


@dataclass(frozen=True)
class Length:
    """Where an answer ends, besides the teacher's own end token."""

    max_tokens: Annotated[
        int,
        Option(
            "Maximum number of tokens to generate; -1: no limit.",
            "N",
            ("--max-tokens", "-m"),
            read=whole(1, "give at least 1, or -1 for no limit", -1),
        ),
    ] = 256
    stop: Annotated[
        list[str] | None,
        Option("End the answer where this text would come; repeat it for several.", "TEXT", read=unescaped),
    ] = None

    def __post_init__(self) -> None:
        """See that each is one that has a meaning."""
        check_fields(self)


@dataclass(frozen=True)
class CacheOptions:
    """How the prompt cache is made, filled and quantised."""

    max_kv_size: Annotated[int | None, number("The most tokens that the KV cache holds.", 1)] = None
    prefill_step_size: Annotated[int, number("Prompt tokens that one forward takes; smaller saves memory.", 1)] = 2048
    kv_bits: Annotated[int | None, number("Bits of KV cache quantisation; none by default.", 1)] = None
    kv_group_size: Annotated[int, number("Group size of KV cache quantisation.", 1)] = 64
    quantized_kv_start: Annotated[int, number("With --kv-bits, the token from which the cache is quantised.", 0)] = 5000

    def __post_init__(self) -> None:
        """See that each is one that has a meaning."""
        check_fields(self)

    def filling(self) -> dict[str, Any]:
        """How it is filled and quantised, answer by answer: all but its size, which is chosen when it is made."""
        return {name: value for name, value in vars(self).items() if name != "max_kv_size"}
