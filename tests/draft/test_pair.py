"""Graph and model as one drafter: who drafts follows from chances and costs, the words are plain's in any case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.nn as nn
import numpy as np
import pytest
from graphs import Compiled, chain, random_graph, write_rows
from recorded_model import Bill, RecordedFollower, load_drafts, record_drafts, save_drafts
from test_draft import STATE, anchored
from typer.testing import CliRunner
from zoo import CONFIGS, VOCABULARY, build, plain_tokens

from daari_mlx.cli import main as cli
from daari_mlx.cli.options.names import DrafterName
from daari_mlx.cost.length import Cost
from daari_mlx.decode.choose import pair_drafter
from daari_mlx.decode.generate import stream_generate
from daari_mlx.draft.drafter import Context, Draft
from daari_mlx.draft.model import SOURCE, ModelDrafter
from daari_mlx.draft.pair import PairDrafter
from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.follower import Follower

LINEAR = Cost((1, 33), (1.0, 2.44))
TRUTH = list(range(100, 164))  # what the teacher says: the chain below says the same
PROMPT = [1, 2, 3, 99]


# --- what the follower knows


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_what_was_read_is_known_and_costs_nothing_again(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    follower, text = Follower(model), [3, 1, 4, 1, 5, 9, 2, 6]
    assert follower.behind(text) == 8 and follower.takes_back
    said, promises = follower.look(text, 3)
    for place, own in enumerate(said):
        assert own == plain_tokens(model, text[: 6 + place], 1)[0] and 0 < promises[place] <= 1
    assert follower.behind(text) == 0
    with monkeypatch.context() as patch:
        patch.setattr(type(model), "__call__", lambda *_, **__: 1 / 0)
        assert follower.look(text)[0] == said[-1:]
        assert next(follower.steps(text, 1))[0] == said[-1]
    assert follower.behind([*text, 7, 8]) == 2
    other = [*text[:-2], 9, 9]
    assert follower.behind(other) == (2 if follower.takes_back else 8)
    own = [token for token, _ in follower.steps([*text, 7], 4)]
    assert own == plain_tokens(model, [*text, 7], 4)
    assert follower.look([*text, 7, *own[:3]])[0] == own[3:], "steps leave what they read known"


# --- who drafts


class Spoken:
    """A teacher that says ``TRUTH``, a graph that knows ``graph`` of it, and a model that is right at ``right``."""

    def __init__(
        self, graph: list[int], right: Callable[[int], bool], draft_cost: float, *, share: float = 0.9, **options: Any
    ) -> None:
        said = [t if right(k) else 7 for k, t in enumerate(TRUTH)]
        self.bill = Bill()
        follower = RecordedFollower(lambda m: draft_cost * LINEAR(m), self.bill)
        stream = SimpleNamespace(start=len(PROMPT), tokens=[*PROMPT, *TRUTH])
        follower.follow(stream, (said, [0.95 if right(k) else 0.4 for k in range(len(TRUTH))]))  # type: ignore[arg-type]
        model = ModelDrafter(nn.Module(), cost=LINEAR, draft_cost=draft_cost, follower=follower)
        self.known = graph
        options = {"cost": LINEAR, "ends": (), **options}
        self.pair = PairDrafter(anchored(chain([1000, 1001], 2000), 0), model, **options)
        self.pair.graph.draft = self._walk  # type: ignore[method-assign]
        self.share, self.text, self.asked = share, list(PROMPT), 0

    def _walk(self, context: Context, limit: int, pending: int = 0) -> Draft:
        """What the graph would propose."""
        said = len(context.tokens) - len(PROMPT)
        tokens = self.known[said : said + limit]
        return Draft(tokens, [self.share] * len(tokens), ["edge"] * len(tokens), 3)

    def answer(self) -> list[Draft]:
        """One answer, round for round."""
        self.asked += 1
        self.text, drafts = [1000 + self.asked, *PROMPT[1:]], []  # another prompt each time: nothing of it was read
        while (done := len(self.text) - len(PROMPT)) < len(TRUTH):
            draft = self.pair.draft(Context(self.text, STATE), len(TRUTH) - done)
            drafts.append(draft)
            right = next((k for k, t in enumerate(draft.tokens) if t != TRUTH[done + k]), len(draft.tokens))
            self.text.extend(TRUTH[done : done + max(right + 1, draft.rest)])
        return drafts


def sources(drafts: list[Draft]) -> set[str]:
    return {source for draft in drafts for source in draft.sources}


def test_a_sure_graph_drafts_and_a_dear_model_is_never_asked() -> None:
    spoken = Spoken(TRUTH, lambda k: True, 0.9, share=0.98)
    drafts = spoken.answer()
    assert sources(drafts) == {"edge"} and spoken.bill.time == 0
    assert len(drafts) <= 6 and all(draft.anchor == 3 for draft in drafts)


def test_where_the_graph_knows_nothing_a_cheap_model_drafts() -> None:
    drafts = Spoken([], lambda k: True, 0.05).answer()
    assert sources(drafts) == {SOURCE} and len(drafts) < len(TRUTH) / 4


def test_the_model_reads_the_graphs_draft_in_one_forward_and_puts_in_its_own_tokens() -> None:
    half = [t if k % 8 else 5 for k, t in enumerate(TRUTH)]  # the graph is wrong at every eighth token
    spoken = Spoken(half, lambda k: True, 0.1, share=0.85)
    drafts = spoken.answer()
    assert sources(drafts) == {"edge", SOURCE}
    alone = Spoken([], lambda k: True, 0.1)
    assert spoken.bill.time < alone.bill.time + len(alone.answer()) * 0.1 + alone.bill.time
    assert len(drafts) < len(TRUTH) / 6
    agreement = spoken.pair.agreement
    assert agreement.against_graph.value > 0.6 and agreement.with_graph.value > 0.9


def test_a_model_that_is_always_wrong_is_given_up_and_asked_ever_less() -> None:
    spoken = Spoken([], lambda k: False, 0.1)
    spent = []
    for _ in range(6):
        before = spoken.bill.time
        spoken.answer()
        spent.append(spoken.bill.time - before)
    assert sum(spent[2:]) / 4 < 0.05 * len(TRUTH), "what finding out costs is a small share of the time"
    assert spoken.pair.agreement.anywhere.value < 0.4


def test_a_model_that_was_wrong_is_heard_again_while_others_draft() -> None:
    wrong = [True]
    spoken = Spoken([], lambda k: not wrong[0], 0.02)
    for _ in range(4):
        spoken.answer()
    low = spoken.pair.agreement.anywhere.value
    follower: Any = spoken.pair.model.follower
    follower.said = (TRUTH, [0.95] * len(TRUTH))
    for _ in range(12):
        drafts = spoken.answer()
    assert spoken.pair.agreement.anywhere.value > low + 0.2 and SOURCE in sources(drafts)


def test_a_model_that_cannot_pay_is_off_and_the_graph_is_as_alone() -> None:
    spoken = Spoken(TRUTH, lambda k: True, 1.5, share=0.6)
    assert "costs 1.50" in str(spoken.pair.model.off)
    spoken.answer()
    assert spoken.bill.time == 0


def test_a_set_length_is_the_graphs_while_it_is_surer_and_then_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = Spoken(TRUTH[:4], lambda k: True, 0.1, share=0.9, num_draft_tokens=6, cost=None)
    spoken.pair.model.follower.block = lambda text, n: (TRUTH[len(text) - len(PROMPT) :][:n], [0.9] * n)  # type: ignore[method-assign]
    draft = spoken.pair.draft(Context(list(PROMPT), STATE), 60)
    assert draft.tokens == TRUTH[:6] and draft.sources == ["edge"] * 4 + [SOURCE] * 2
    assert len(draft.probabilities) == 6 and draft.anchor == 3
    assert len(spoken.pair.draft(Context(list(PROMPT), STATE), 2).tokens) == 2


def test_without_a_length_the_costs_are_needed() -> None:
    with pytest.raises(ValueError, match="needs num_draft_tokens"):
        PairDrafter(random_graph(), ModelDrafter(build("llama"), num_draft_tokens=1))


# --- the same words, live


@pytest.mark.parametrize("length", ["auto", 1, 4, 0])
@pytest.mark.parametrize("dear", [False, True])
def test_the_words_are_plains_and_every_token_says_who_drafted_it(
    compiled: Compiled, length: Any, dear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = compiled.teacher
    monkeypatch.setattr("daari_mlx.cost.machine.cost_of", lambda _: LINEAR)
    model = ModelDrafter(
        teacher.model,
        num_draft_tokens=None if length == "auto" else 1,
        cost=LINEAR,
        draft_cost=0.5 if dear else 0.05,
        ends=teacher.tokenizer.eos_token_ids,
        vocab_size=max(teacher.tokenizer.get_vocab().values()) + 1,
    )
    drafter = pair_drafter(compiled.graph, model, teacher, length)
    seen: set[str] = set()
    prompts = [s.tokens[: s.answer_start] for s in compiled.sequences[:2]]
    prompts.append(teacher.tokenizer.encode("Nobody compiled a graph of these words."))
    for prompt in prompts:
        plain = [r.token for r in stream_generate(teacher.model, teacher.tokenizer, prompt, 40)]
        found = list(
            stream_generate(teacher.model, teacher.tokenizer, prompt, 40, drafter=drafter, num_draft_tokens=length)
        )
        assert [r.token for r in found] == plain
        statistics = found[-1].statistics
        assert sum(statistics.sources.values()) == statistics.tokens == len(plain)
        seen |= set(statistics.sources)
    if length != 0 and not dear:
        assert SOURCE in seen and statistics.tokens_per_forward > 1.5


def run(*args: object) -> Any:
    return CliRunner().invoke(cli.app, [str(a) for a in args])


def test_every_command_takes_both(
    compiled: Compiled, tiny_teacher_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daari_mlx.cost.machine.cost_of", lambda _: LINEAR)
    monkeypatch.setattr("daari_mlx.draft.model.measure_draft_cost", lambda *_: 0.05)
    common = ("--model", tiny_teacher_path, "--max-tokens", 12)
    both = ("--graph", compiled.path, "--draft-model", tiny_teacher_path)
    ask = ("generate", *common, "--prompt", "Win a prize now", "--verbose", "False")
    plain = run(*ask).stdout
    for how in (both, (*both, "--drafter", "pair")):
        answer = run(*ask, *how)
        assert answer.exit_code == 0 and answer.stdout == plain
    write_rows(tmp_path / "test.jsonl", 2, seed=2)
    record = json.loads(run("bench", *common, "--data", tmp_path, "-n", 2, *both, "--json").stdout)
    assert record["ok"] and record["drafter"]["is"] == "PairDrafter"
    assert record["graph"]["nodes"] == compiled.graph.size, "prompts of the graph are looked for here too"
    said = CliRunner().invoke(cli.app, ["chat", *map(str, (*common, *both))], input="Lunch at noon?\n")
    assert said.exit_code == 0
    missing = run(*ask, "--drafter", "pair", "--graph", compiled.path)
    assert missing.exit_code == 1 and "--drafter pair needs --draft-model" in missing.stderr


def test_a_graph_of_another_teacher_is_refused(compiled: Compiled, tiny_teacher_path: Path) -> None:
    name = DrafterName("other", str(tiny_teacher_path), "pair", 3)
    with pytest.raises(DaariError, match="another teacher"):
        name.load(random_graph(teacher={"source": "other"}), compiled.teacher, trust_remote_code=False)


# --- what a model says along a stream can be kept


def test_recorded_drafts_are_the_models(tmp_path: Path) -> None:
    model, prompt = build("llama"), [3, 1, 4]
    answer = plain_tokens(model, prompt, 9)
    stream: Any = SimpleNamespace(tokens=[*prompt, *answer], start=3, answer=answer)
    said = record_drafts(model, [stream, stream])
    assert said[0][0] == answer
    save_drafts(said, tmp_path / "said.npz")
    kept = load_drafts(tmp_path / "said.npz")
    assert [tokens for tokens, _ in kept] == [answer, answer]
    np.testing.assert_allclose(kept[1][1], said[1][1], rtol=1e-6)
    bill = Bill()
    follower = RecordedFollower(float, bill)
    follower.follow(stream, kept[0])
    assert follower.behind(prompt) == 3 and follower.look(prompt)[0] == answer[:1] and bill.time == 3
    assert [t for t, _ in follower.steps(prompt, 4)] == answer[:4] and bill.time == 6
    assert max(answer) < VOCABULARY
