"""Random batches: requests of every sort come, leave, fail and are cancelled at random rounds, with random drafts.

What each of them is to say is known from plain mlx-lm, one answer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from bench_dropin import tokenizer
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.sample_utils import make_logits_processors, make_sampler
from zoo import Oracle, plain_tokens

from daari_mlx.batch.engine import BatchEngine
from daari_mlx.batch.request import Event, Request
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.length import Cost
from daari_mlx.teacher.tap import tap_model

SAMPLING = ({"temp": 0.8}, {"temp": 1.0, "top_p": 0.9}, {"temp": 0.7, "top_k": 12}, {"temp": 1.0, "min_p": 0.05})


class Own(Exception):
    """What a caller's own processor raises."""


@dataclass
class Wanted:
    """What becomes of a request: the tokens that it has alone, and after how many of them it fails."""

    tokens: list[int]
    fails: bool = False
    said: list[int] = field(default_factory=list)


@dataclass
class Lived:
    """What a random batch went through."""

    rounds: int = 0
    answers: int = 0
    cancelled: int = 0
    failed: int = 0
    drafted: int = 0
    rejected: int = 0

    def add(self, other: Lived) -> None:
        """Add another one's counts."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


def live(model: nn.Module, seed: int, steps: int) -> Lived:
    """So many steps of a random batch, and those that end it.

    Raises:
        AssertionError: some row says something else than alone, or an event comes that nobody waits for.
    """
    return _Life(model, np.random.default_rng(seed)).run(steps)


class _Life:
    def __init__(self, model: nn.Module, random: np.random.Generator) -> None:
        self.model, self.random, self.lived = model, random, Lived()
        cost = BatchCost(Cost((1, 64), (1.0, float(random.uniform(1.0, 40.0))))) if random.random() < 0.5 else None
        self.engine = BatchEngine(
            model,
            tokenizer(()),
            tap=tap_model(model)[0],
            cost=cost,
            most_rows=int(random.integers(1, 9)),
            most_bytes=int(random.integers(1, 200_000)) if random.random() < 0.2 else None,
            prefill_step_size=int(random.integers(1, 40)),
        )
        self.beginning = self.tokens(int(random.integers(1, 60)))
        self.wanted: dict[int, Wanted] = {}

    def run(self, steps: int) -> Lived:
        for _ in range(steps):
            if self.random.random() < 0.4:
                self.come()
            if self.wanted and self.random.random() < 0.1:
                self.cancel(int(self.random.choice(list(self.wanted))))
            self.step()
        while len(self.engine):
            self.step()
        assert not self.wanted
        return self.lived

    def tokens(self, count: int) -> list[int]:
        return self.random.integers(3, 120, count).tolist()

    def come(self) -> None:
        """A request: greedy or sampled, with processors or without, on a cache or not, drafted well, badly or not."""
        chance, random = self.random.random, self.random
        prompt, count = self.tokens(int(random.integers(1, 40))), int(random.integers(1, 25))
        prompt = self.beginning + prompt if chance() < 0.3 else prompt
        before = self.tokens(int(random.integers(1, 40))) if chance() < 0.2 else []
        cache = make_prompt_cache(self.model) if before else None
        if cache is not None:
            self.model(mx.array([before]), cache=cache)
        seed = int(random.integers(1, 2**31))
        sampler = make_sampler(**SAMPLING[int(random.integers(len(SAMPLING)))]) if chance() < 0.3 else None
        processors = make_logits_processors(repetition_penalty=1.3) if chance() < 0.2 and not before else []
        mx.random.seed(seed)
        answer = plain_tokens(self.model, before + prompt, count, sampler=sampler, logits_processors=processors or None)
        wanted = Wanted(answer)
        if chance() < 0.1:
            wanted.tokens, wanted.fails = answer[: (at := int(random.integers(0, count)))], True
            processors = [*processors, _failing(at)]
        drafter = Oracle(prompt + answer, block=int(random.integers(1, 9)), right=float(chance()), seed=seed)
        uid = self.engine.add(
            Request(
                prompt,
                count,
                sampler=sampler,
                logits_processors=processors or None,
                seed=seed,
                drafter=drafter if chance() < 0.7 else None,
                prompt_cache=cache,
                keep_cache=bool(chance() < 0.2),
            )
        )
        self.wanted[uid] = wanted

    def cancel(self, uid: int) -> None:
        self.engine.cancel(uid)
        gone = self.wanted.pop(uid)
        assert gone.said == gone.tokens[: len(gone.said)]
        self.lived.cancelled += 1

    def step(self) -> None:
        before = self.engine.counts.rounds
        for event in self.engine.step():
            self.take(event)
        self.lived.rounds += self.engine.counts.rounds - before

    def take(self, event: Event) -> None:
        wanted = self.wanted[event.uid]
        wanted.said += [response.token for response in event.responses]
        if not event.ended:
            return
        del self.wanted[event.uid]
        assert (event.error is not None) == wanted.fails and isinstance(event.error, Own | None), event.error
        assert wanted.said == wanted.tokens
        self.lived.answers += 1
        self.lived.failed += wanted.fails
        if event.responses:
            statistics = event.responses[-1].statistics
            self.lived.drafted += statistics.drafted
            self.lived.rejected += statistics.drafted - statistics.accepted


def _failing(at: int) -> Any:
    """A processor that raises behind so many tokens."""
    left = [at]

    def call(tokens: mx.array, logits: mx.array) -> mx.array:
        left[0] -= 1
        if left[0] < 0:
            raise Own
        return logits

    return call
