"""A smaller or cheaper model as a drafter: it goes on greedily, and the teacher verifies what it says.

Nothing is trained. How far to draft follows from its own probabilities, calibrated by what the teacher accepts, and
from what a drafted token and a verified row cost on this machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.cache import make_prompt_cache

from daari_mlx.cost import machine, probe
from daari_mlx.cost.length import MAX_DRAFT, Calibration, CostAt, best_length
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import read_json
from daari_mlx.ground.given import check_draft_length, check_whole
from daari_mlx.teacher.fingerprint import context_length, fingerprint_model, fingerprint_tokenizer
from daari_mlx.teacher.follower import Follower
from daari_mlx.teacher.load import Teacher
from daari_mlx.teacher.quirks import forward_rows, refuses_blocks

TIER = "tier.json"  # in the folder of a model that daari-mlx tier made
SOURCE = "model"
HOPE, HOPE_PRIOR, HOPE_MEMORY = 0.8, 3.0, 0.95  # the share kept of drafts on a new text, and how fast it is relearnt
FIRST_REST, LONGEST_REST = 8, 256  # rounds without a draft where none pays, doubled each time until one pays again
COST_SECONDS, COST_CONTEXT = (
    3.0,
    64,
)  # what measuring the cost of a drafted token may take, and tokens in the cache there
WARM_UP = 2  # forwards that do not count


class ModelDrafter:
    """Drafts what another model would say. It keeps its own cache in step with the context, from answer to answer.

    Args:
        model: the drafting model; its tokenizer is the teacher's.
        num_draft_tokens: draft exactly this many tokens; None lets its probabilities and the costs decide.
        cost: T(m)/T(1) of the teacher on this machine; needed when ``num_draft_tokens`` is None.
        draft_cost: one token of this drafter relative to T(1), see :func:`measure_draft_cost`; needed then too.
        ends: token ids behind which nothing is drafted.
        vocab_size: token ids from here on are none of the teacher's; None where the two heads are equally wide.
        calibration: how its probabilities are to be read; it learns on.
        agreement: the share of its tokens that the teacher has been seen to say too; None where nobody looked.
        source: where the model came from, for records.
        follower: who runs the model; None for one of its own.
    """

    layer = None  # no state of the teacher is needed

    def __init__(
        self,
        model: nn.Module,
        *,
        num_draft_tokens: int | None = None,
        cost: CostAt | None = None,
        draft_cost: float | None = None,
        ends: Iterable[int] = (),
        vocab_size: int | None = None,
        calibration: Calibration | None = None,
        agreement: float | None = None,
        source: str | None = None,
        follower: Follower | None = None,
    ) -> None:
        if num_draft_tokens is None and (cost is None or draft_cost is None):
            raise ValueError("ModelDrafter needs num_draft_tokens, or a cost curve and the cost of a drafted token.")
        if num_draft_tokens is not None:
            check_whole("num_draft_tokens", num_draft_tokens, 1)
        reason = refuses_blocks(model)
        if reason is not None:
            raise DaariError(f"This model cannot draft: {reason}.")
        self.model, self.source = model, source
        self.num_draft_tokens = num_draft_tokens
        self.cost, self.draft_cost = cost, draft_cost or 0.0
        self.calibration = calibration or Calibration()
        self._ends, self._vocab_size = frozenset(ends), vocab_size
        self.context_length = context_length(model)
        self.follower = follower or Follower(model)
        self.agreement = agreement
        self._first_hope = HOPE if agreement is None else agreement
        self._kept, self._judged = self._first_hope * HOPE_PRIOR, HOPE_PRIOR
        self._text: list[int] | None = None
        self._new_answer([])

    def _new_answer(self, text: list[int]) -> None:
        self._text = text
        self._shown: tuple[int, list[int], list[float]] = (0, [], [])  # start, tokens and promises of the newest draft
        self._rest, self._rest_until = FIRST_REST, 0

    @property
    def hope(self) -> float:
        """The chance that a token which is not drafted yet will be kept, by what was kept lately."""
        return self._kept / self._judged

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for a record."""
        return {"source": self.source, "draft_cost": self.draft_cost, "model": fingerprint_model(self.model)}

    @property
    def off(self) -> str | None:
        """Why it never drafts: even drafts that are always right would cost more than they give; else None."""
        if self.num_draft_tokens is not None or self.cost is None:
            return None
        if best_length([1.0] * MAX_DRAFT, self.cost.at(0), draft_cost=self.draft_cost) > 0:
            return None
        return (
            f"a token of the drafting model costs {self.draft_cost:.2f} of a teacher's forward: no draft can pay on "
            "this machine"
        )

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`; the states are not looked at."""
        if context.tokens is not self._text:
            self._new_answer(context.tokens)
            self.follower.renew()
        self._learn(context.tokens)
        if self.context_length is not None:
            limit = min(limit, self.context_length - len(context.tokens))
        if limit < 1:
            return Draft()
        if self.num_draft_tokens is not None:
            tokens, promises = self.follower.block(context.tokens, min(limit, self.num_draft_tokens))
            length = self.usable(tokens)
            return self._drafted(context.tokens, tokens[:length], promises[:length], length)
        assert self.cost is not None
        self._cost = self.cost.at(len(context.tokens))
        return self._as_far_as_it_pays(context.tokens, min(limit, MAX_DRAFT), pending)

    def _as_far_as_it_pays(self, text: list[int], limit: int, pending: int) -> Draft:
        if len(text) < self._rest_until:
            return Draft(rest=self._rest_until - len(text) - 1)
        if self._best([], limit, pending) == 0:
            rest, self._rest = self._rest, min(2 * self._rest, LONGEST_REST)
            self._rest_until = len(text) + rest + 1
            self._hope_again()
            return Draft(rest=rest)
        tokens: list[int] = []
        promises: list[float] = []
        for token, promise in self.follower.steps(text, limit):
            if self._vocab_size is not None and token >= self._vocab_size:
                break
            tokens.append(token)
            promises.append(promise)
            if self.is_end(token) or self._best(self._chances(promises), limit, pending) <= len(tokens):
                break
        return self._drafted(text, tokens, promises, self._best(self._chances(promises), len(promises), pending))

    def _drafted(self, text: list[int], tokens: list[int], promises: list[float], length: int) -> Draft:
        self._shown = (len(text), tokens, promises)
        return Draft(tokens[:length], self._chances(promises[:length]), [SOURCE] * length)

    def _chances(self, promises: list[float]) -> list[float]:
        return [self.calibration(p) for p in promises]

    def _best(self, chances: list[float], limit: int, pending: int) -> int:
        """The best length of a draft that begins with tokens of these chances and may be drawn out to ``limit``."""
        hoped = [self.hope] * (limit - len(chances))
        drafted = len(chances)
        return best_length([*chances, *hoped], self._cost, pending, draft_cost=self.draft_cost, drafted=drafted)

    def usable(self, tokens: list[int]) -> int:
        """How many leading tokens the teacher knows, none behind an end."""
        for place, token in enumerate(tokens):
            if self._vocab_size is not None and token >= self._vocab_size:
                return place
            if token in self._ends:
                return place + 1
        return len(tokens)

    def is_end(self, token: int) -> bool:
        """Whether nothing is drafted behind this token."""
        return token in self._ends

    def _learn(self, text: list[int]) -> None:
        """Compare the newest draft with what the teacher said since."""
        start, tokens, promises = self._shown
        self._shown = (0, [], [])
        for own, drafted, promise in zip(text[start:], tokens, promises, strict=False):
            right = own == drafted
            self.calibration.learn(promise, right)
            self._kept = self._kept * HOPE_MEMORY + right
            self._judged = self._judged * HOPE_MEMORY + 1
            if not right:
                break
            self._rest = FIRST_REST

    def _hope_again(self) -> None:
        """Half of what was learnt is forgotten, so that a draft is tried after the rest."""
        self._kept, self._judged = (
            (self._kept + self._first_hope * HOPE_PRIOR) / 2,
            (self._judged + HOPE_PRIOR) / 2,
        )


def measure_draft_cost(
    draft_model: nn.Module, teacher: nn.Module, repeats: int = 9, seconds: float = COST_SECONDS
) -> float:
    """How long a one-row forward of ``draft_model`` takes relative to the teacher's: the medians of both, in turn.

    Args:
        repeats: forwards of each that count.
        seconds: after which no more are begun: an answer is waiting. One of each there is at least.
    """
    models = (draft_model, teacher)
    caches = [make_prompt_cache(model) for model in models]
    times: tuple[list[float], list[float]] = ([], [])
    for model, cache in zip(models, caches, strict=True):
        rows = max(1, min(COST_CONTEXT, (context_length(model) or COST_CONTEXT) - repeats - 3))
        forward_rows(model, mx.array([[probe.PROMPT_TOKEN] * rows]), cache)
        mx.eval([c.state for c in cache])
    begun = time.perf_counter()
    for number in range(repeats + WARM_UP):
        if number > WARM_UP and time.perf_counter() - begun > seconds:
            break
        for model, cache, found in zip(models, caches, times, strict=True):
            start = time.perf_counter()
            mx.eval(mx.argmax(forward_rows(model, mx.array([[probe.PROMPT_TOKEN]]), cache), axis=-1))
            found.append(time.perf_counter() - start)
    return statistics.median(times[0][WARM_UP:]) / statistics.median(times[1][WARM_UP:])


def model_drafter(loaded: Teacher, teacher: Teacher, num_draft_tokens: int | Literal["auto"] = "auto") -> ModelDrafter:
    """The drafter of a loaded model for a teacher; a tier brings what was learnt about its probabilities.

    Args:
        loaded: the drafting model.
        teacher: who verifies.
        num_draft_tokens: see :func:`daari_mlx.stream_generate`; for 0, no draft at all, the loop does not ask it.

    Raises:
        DaariError: its tokenizer is another one, or it cannot take blocks of rows.
    """
    check_draft_length(num_draft_tokens)
    check_tokenizers(loaded.tokenizer, teacher.tokenizer, loaded.source)
    vocabulary = teacher.tokenizer.get_vocab().values()
    calibration, agreement = read_tier(Path(loaded.source))
    shared = {
        "ends": teacher.tokenizer.eos_token_ids,
        "vocab_size": max(vocabulary) + 1,
        "calibration": calibration,
        "agreement": agreement,
        "source": loaded.source,
    }
    if num_draft_tokens != "auto":
        return ModelDrafter(loaded.model, num_draft_tokens=num_draft_tokens or 1, **shared)
    cost = machine.cost_of(teacher.model)
    draft_cost = measure_draft_cost(loaded.model, teacher.model)
    return ModelDrafter(loaded.model, cost=cost, draft_cost=draft_cost, **shared)


def check_tokenizers(drafter: Any, teacher: Any, path: str = "the drafting model") -> None:
    """Raise :class:`DaariError` where two tokenizers give other ids to the same text."""
    found, wanted = fingerprint_tokenizer(drafter), fingerprint_tokenizer(teacher)
    if found != wanted:
        mine, own = (
            f"{getattr(t, 'name_or_path', None) or type(t).__name__} ({f['vocab_size']} tokens, "
            f"vocabulary {f['tokenizer'][:8]})"
            for t, f in ((drafter, found), (teacher, wanted))
        )
        raise DaariError(
            f"{path} has the tokenizer {mine}, the teacher {own}: a drafting model needs the teacher's own. Take one "
            "of the same family, or make a tier of the teacher: daari-mlx tier."
        )


def read_tier(folder: Path) -> tuple[Calibration, float | None]:
    """What a tier's making has shown: how to read its probabilities, and the share of tokens that the teacher said too.

    Of a folder that is no tier nothing is known.

    Raises:
        DaariError: tier.json is damaged.
    """
    if not (folder / TIER).exists():
        return Calibration(), None
    found = read_json(folder / TIER, "tier's record").get("calibration")
    try:
        kept, judged = found["kept"], found["judged"]  # type: ignore[index]
        calibration = Calibration(kept, judged)
    except (TypeError, KeyError, ValueError) as error:
        raise DaariError(
            f"{folder / TIER} is damaged ({type(error).__name__}: {error}): remove that file, or make the tier anew."
        ) from error
    return calibration, sum(kept) / sum(judged) if sum(judged) else None
