"""Graph and model as one drafter: in every round whoever is expected to give more tokens for the time drafts, or both.

The graph's proposal costs nothing and comes with its chances. The model is asked where that pays: it reads the graph's
draft in one forward, puts its own tokens where it knows better, and goes on behind it. How often it agrees with the
teacher is learnt from what the teacher says: from its drafts, and from all that it reads to catch up.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from daari_mlx.cost.length import MAX_DRAFT, Calibration, Cost, CostAt, Trust
from daari_mlx.draft.drafter import Context, Draft, GraphDrafter, rest_after
from daari_mlx.draft.model import HOPE, SOURCE, ModelDrafter
from daari_mlx.draft.pair_plan import Agreement, Plan, bound, either, graph_plan, instead, longest, model_plan
from daari_mlx.graph.graph import Graph

ALL_OF_IT = Cost((1, 2), (1.0, 1.0))  # rows that cost nothing: the graph shows its whole path
EXPLORE = 0.01  # of the time, how much may go into finding out whether the model would do better
USUAL, USUAL_MEMORY = 64.0, 0.8  # tokens of an answer before any has ended, and how fast the usual number changes
GAIN_MEMORY = 0.8  # of what a round would gain from the model
CAUGHT_UP = 2  # tokens that a model has to read after its own draft: the last of it, and the teacher's bonus
KEPT_PRIOR, KEPT_MEMORY = 12.0, 0.96  # tokens that plans with the model are taken to have kept, and their weight
MOST_LOOKED = 48  # tokens of an answer that are judged in one forward of the model


@dataclass
class _Shown:
    """What was thought of the next tokens, to be compared with what the teacher says.

    Attributes:
        start: where they begin.
        path: what the graph named.
        trusted: how many tokens of it count for the trust in it.
        tokens: what was drafted, before the draft was cut.
        model: the model's own token at each place that it was asked about, and its probability.
        promises: for a token on which both had a say, whether they agreed and the chance that was made of both.
        with_model: whether the model had a say.
        promised: how many tokens the plan promised for the time that the round took; 0 where nothing was drafted.
    """

    start: int = 0
    path: Draft = field(default_factory=Draft)
    trusted: int = 0
    tokens: list[int] = field(default_factory=list)
    model: list[tuple[int, float] | None] = field(default_factory=list)
    promises: list[tuple[bool, float] | None] = field(default_factory=list)
    with_model: bool = False
    promised: float = 0.0


class PairDrafter:
    """Drafts by graph, by model, or by the graph's draft as the model would have it.

    Args:
        graph: attached to the teacher.
        model: the other drafter; what it knows about its own probabilities is used and goes on being learnt.
        num_draft_tokens: draft exactly this many tokens: the graph's while it is surer than the model, then the
            model's; None lets chances and costs decide.
        cost: T(m)/T(1) of the teacher on this machine; needed when ``num_draft_tokens`` is None.
        reading: T(m)/T(1) of the model; None takes ``cost``.
        ends: token ids that end an answer.
    """

    def __init__(
        self,
        graph: Graph,
        model: ModelDrafter,
        *,
        num_draft_tokens: int | None = None,
        cost: CostAt | None = None,
        reading: CostAt | None = None,
        ends: Collection[int] = (),
    ) -> None:
        if num_draft_tokens is None and cost is None:
            raise ValueError("PairDrafter needs num_draft_tokens or a cost curve to choose a length from.")
        self.graph = GraphDrafter(graph, num_draft_tokens=num_draft_tokens, cost=cost and ALL_OF_IT, ends=ends)
        self.layer = self.graph.layer
        self.model, self.num_draft_tokens, self.cost = model, num_draft_tokens, cost
        self._reading = (reading or cost or ALL_OF_IT).at(0)
        self._least = min(t / m for m, t in zip(self._reading.rows, self._reading.relative, strict=True))
        self.agreement = Agreement(HOPE if model.agreement is None else model.agreement)
        self._trust, self._agreed, self._split = Trust(), Calibration(), Calibration()
        self._usual, self._ended = USUAL, 0  # tokens of an answer, and how many have ended
        self._gain = self._unread = 0.0  # time a token that the model would save; time since it was heard
        self._kept = dict.fromkeys((True, False), (KEPT_PRIOR, KEPT_PRIOR))  # with the model, or without: see _came
        self._off = model.off
        self._text: list[int] | None = None
        self._start = self._idle = 0
        self._graph_was: dict[int, bool] = {}  # by place in the text, whether the graph named the right token
        self._shown = _Shown()

    @property
    def about(self) -> dict[str, Any]:
        """What it is, for a record."""
        return {**self.model.about, "model_off": self._off}

    def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """See :meth:`daari_mlx.draft.drafter.Drafter.draft`."""
        text = context.tokens
        if text is not self._text:
            self._new_answer(text)
            self.model.follower.renew()
        self._learn(text)
        path = self.graph.draft(context, min(limit, MAX_DRAFT), pending)
        if self.cost is None:
            return self._of_length(text, path, limit)
        chances, cost = self._trust.believed(path.probabilities), self.cost.at(len(text))
        alone = graph_plan(chances, cost, pending)
        self._shown = _Shown(len(text), path, max(alone.length, 1))
        plan, spent = self._choose(text, chances, alone, cost, pending, limit)
        if plan.read is None:
            draft = path.first(plan.length)
        else:
            draft, more = self._with_model(text, path, chances, plan, cost, pending, self._room(text, limit))
            spent += more
        took = cost(1 + pending + len(draft.tokens)) + spent
        self._shown.with_model, self._shown.promised = plan.read is not None, plan.rate * took * (len(draft.tokens) > 0)
        self._idle = 0 if draft.tokens else self._idle + 1
        rest = rest_after(self._idle)
        self._unread += took + rest
        return replace(draft, anchor=path.anchor, rest=rest)

    def _new_answer(self, text: list[int]) -> None:
        if self._text is not None and len(self._text) > self._start:
            self._ended += 1
            self._usual += max(1 / (1 + self._ended), 1 - USUAL_MEMORY) * (len(self._text) - self._start - self._usual)
            self._trust.turn()
        self._text, self._start = text, len(text)
        self._shown, self._graph_was, self._idle = _Shown(), {}, 0

    def _came(self, with_model: bool) -> float:
        """What share of the tokens came that such plans promised."""
        return self._kept[with_model][0] / self._kept[with_model][1]

    def _room(self, text: list[int], limit: int) -> int:
        """How many tokens the model may draft."""
        context = self.model.context_length
        return min(limit, MAX_DRAFT, limit if context is None else context - len(text))

    def _forward(self, rows: int) -> float:
        """What a forward of the model takes; of many rows, as little for each as in the best measured block."""
        known = self._reading.rows[-1]
        return self.model.draft_cost * (self._reading(rows) if rows <= known else rows * self._least)

    # --- who drafts

    def _choose(
        self, text: list[int], chances: list[float], alone: Plan, cost: Cost, pending: int, limit: int
    ) -> tuple[Plan, float]:
        """The plan of this round, and the time that was spent on finding it."""
        room, behind = self._room(text, limit), self.model.follower.behind(text)
        near = min(behind, CAUGHT_UP)
        if room < 1 or self._off or bound(cost, pending, self._forward(near), room) <= alone.rate:
            self._gain *= GAIN_MEMORY
            return alone, 0.0
        read = chances if self.model.follower.takes_back else []
        plan = model_plan(read, self.agreement, cost, pending, self._forward, near, room)
        gain = max(0.0, 1 / alone.rate - 1 / (plan.rate * min(1.0, self._came(True) / self._came(False))))
        self._gain = self._gain * GAIN_MEMORY + gain * (1 - GAIN_MEMORY)
        left = min(limit + 1.0, max(self._usual - (len(text) - self._start), self._usual / 4))
        worth = gain * plan.tokens + max(gain * (1 - GAIN_MEMORY), self._gain) * max(0.0, left - plan.tokens)
        backlog = self._forward(behind) - self._forward(near) if behind > near else 0.0
        if gain > 0 and backlog <= worth:
            return plan, 0.0
        if behind > near and gain == 0 and self._forward(behind) <= EXPLORE * self._unread:
            self._look(text, [])
            plan, self._unread = model_plan(read, self.agreement, cost, pending, self._forward, 0, room), 0.0
            return (plan if plan.rate > alone.rate else alone), self._forward(behind)
        return alone, 0.0

    def _of_length(self, text: list[int], path: Draft, limit: int) -> Draft:
        """A draft of a set length: the graph's while it is surer than the model, then the model's."""
        assert self.num_draft_tokens is not None
        wanted = min(limit, self.num_draft_tokens)
        hope = self.agreement.anywhere.value
        sure = next((k for k, p in enumerate(path.probabilities) if p < hope), len(path.tokens))
        if sure < wanted and not self.model.follower.takes_back:
            sure = 0
        tokens, promises = path.tokens[:sure], path.probabilities[:sure]
        ended = bool(tokens) and self.model.is_end(tokens[-1])
        room = min(wanted, self._room(text, limit)) - sure
        if room < 1 or ended:
            return path.first(wanted)
        shown = self._shown = _Shown(len(text), path, 0, tokens[:], [None] * sure, [None] * sure)
        own, own_promises = self.model.follower.block([*text, *tokens], room)
        length = self.model.usable(own)
        for token, promise in zip(own[:length], own_promises, strict=False):
            shown.tokens.append(token)
            shown.model.append((token, promise))
            shown.promises.append(None)
            promises = [*promises, self.model.calibration(promise)]
        sources = [path.source_of(k) for k in range(sure)] + [SOURCE] * length
        return replace(path, tokens=shown.tokens[:], probabilities=promises, sources=sources)

    # --- a draft in which the model has a say

    def _with_model(
        self, text: list[int], path: Draft, chances: list[float], plan: Plan, cost: Cost, pending: int, room: int
    ) -> tuple[Draft, float]:
        """The draft, and the time that the model took."""
        assert plan.read is not None
        follower, shown = self.model.follower, self._shown
        behind = follower.behind(text)
        read = path.tokens[: min(plan.read, room)]
        spent = self._forward(behind + len(read)) if behind + len(read) else 0.0
        tokens, found, sources, left = shown.tokens, [], [], False
        for place, (own, promise) in enumerate(self._look(text, read)):
            model = self.model.calibration(promise)
            token, chance, agreed = self._judge(path.tokens[place], chances[place], own, model)
            shown.model.append((own, promise))
            shown.promises.append((agreed, chance))
            tokens.append(token)
            found.append((self._agreed if agreed else self._split)(chance))
            left = token != path.tokens[place]
            sources.append(SOURCE if left else path.source_of(place))
            if left:
                break
        usable = self.model.usable(tokens)
        ended = usable < len(tokens) or (bool(tokens) and self.model.is_end(tokens[-1]))
        steps = follower.steps([*text, *tokens], room - len(tokens))
        step, free = self._forward(1), not left
        while not ended and len(tokens) < room:
            hoped = [*found, *[self.agreement.anywhere.value] * (room - len(tokens))]
            if not free and longest(hoped, cost, pending, spent, step, len(tokens)) <= len(tokens):
                break
            spent, free = spent + (0.0 if free else step), False
            own, promise = next(steps)
            ended = self.model.is_end(own)
            if self.model.usable([own]) == 0:
                break
            tokens.append(own)
            found.append(self.model.calibration(promise))
            sources.append(SOURCE)
            shown.model.append((own, promise))
            shown.promises.append(None)
        length = longest(found[: self.model.usable(tokens)], cost, pending, spent)
        return Draft(tokens[:length], found[:length], sources[:length]), spent

    @staticmethod
    def _judge(graph_token: int, graph: float, own: int, model: float) -> tuple[int, float, bool]:
        """Of two named tokens the likelier, its chance, and whether they were the same."""
        if own == graph_token:
            return own, either(graph, model), True
        if graph >= model:
            return graph_token, instead(graph, model), False
        return own, instead(model, graph), False

    def _look(self, text: list[int], read: list[int]) -> list[tuple[int, float]]:
        """Let the model read what is new and ``read``; what it would have said in the answer so far is judged.

        Returns:
            Its own token at each place of ``read``, and its probability for it.
        """
        follower = self.model.follower
        new = min(follower.behind(text) - 1, len(text) - self._start, MOST_LOOKED)
        if new < 0 and not read:
            return []
        held = new < 0  # the last token was read before: what the model says behind it is still known
        first = follower.look(text) if held else ([], [])
        rows = len(read) if held else max(0, new) + 1 + len(read)
        said, promises = follower.look([*text, *read], rows)
        pairs = list(zip([*first[0], *said], [*first[1], *promises], strict=True))
        past = max(0, new)
        for place, (own, promise) in enumerate(pairs[:past], start=len(text) - past):
            self._heard(place, own == text[place], promise)
        return pairs[past : past + len(read)]

    # --- what is learnt

    def _heard(self, place: int, right: bool, promise: float) -> None:
        """Take in what the model said at a place of the text."""
        self._unread = 0.0
        self.agreement.learn(self._graph_was.get(place), right)
        self.model.calibration.learn(promise, right)

    def _learn(self, text: list[int]) -> None:
        """Compare what was shown last with what the teacher said since."""
        shown, self._shown = self._shown, _Shown()
        said = text[shown.start :]
        if shown.promised:
            came, promised = self._kept[shown.with_model]
            self._kept[shown.with_model] = came * KEPT_MEMORY + len(said), promised * KEPT_MEMORY + shown.promised
        named = zip(said, shown.path.tokens, shown.path.probabilities, strict=False)
        for place, (own, token, chance) in enumerate(named):
            self._graph_was[shown.start + place] = own == token
            if place < shown.trusted:
                self._trust.learn(chance, own == token)
            if own != token:
                break
        drafted = zip(said, shown.tokens, shown.model, shown.promises, strict=False)
        for place, (own, token, model, both) in enumerate(drafted):
            if model is not None:
                self._heard(shown.start + place, own == model[0], model[1])
            if both is not None:
                (self._agreed if both[0] else self._split).learn(both[1], own == token)
            if own != token:
                break
