"""Watching changes nothing, and what is shown is what happened: the drafts, the verdicts, the nodes, the sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx_lm
import numpy as np
import pytest
from graphs import Compiled, full_graph, random_graph
from zoo import Oracle

from daari_mlx import stream_generate
from daari_mlx.cost.length import Cost
from daari_mlx.decode.emitted import Round
from daari_mlx.decode.responses import GenerationResponse
from daari_mlx.draft.drafter import Context, Draft, GraphDrafter
from daari_mlx.draft.lookup import LookupDrafter
from daari_mlx.graph.graph import NO_NODE, Graph
from daari_mlx.graph.source import CELL_BITS
from daari_mlx.ground.accept import Statistics
from daari_mlx.ground.legible import Words
from daari_mlx.show.annotate import annotate, round_record, walk_nodes

LENGTH = 40


class Letters:
    """A tokenizer of one letter a token, for records that a person can read."""

    detokenizer = None

    def convert_ids_to_tokens(self, token: int) -> str:
        return chr(token)

    def decode(self, tokens: list[int]) -> str:
        return "".join(map(chr, tokens))


LETTERS = Words(Letters())


def ids(text: str) -> list[int]:
    return [ord(c) for c in text]


def drafted(text: str, sources: str = "", sure: float = 0.5, **more: Any) -> Draft:
    return Draft(ids(text), [sure] * len(text), [{"p": "path", "c": "copy"}[s] for s in sources], **more)


def verdicts(record: dict[str, Any]) -> str:
    return "".join(t["verdict"][:3] + " " for t in record["draft"]).strip()


# --- what became of each draft token


def test_a_rejected_token_says_what_the_teacher_wanted_and_those_behind_it_were_not_read() -> None:
    made = Round(3, ids("abX"), drafted("abcd", "ppcc"), 4, 2)
    record = round_record(made, ids("abX"), ord("!"), LETTERS)
    assert verdicts(record) == "acc acc rej unr"
    assert record["draft"][2]["wanted"] == {"token": ord("X"), "text": "X"} == record["bonus"]
    assert [t for t in record["draft"] if "wanted" in t] == [record["draft"][2]]
    assert [t["source"] for t in record["draft"]] == ["path", "path", "copy", "copy"]
    assert [t["path_probability"] for t in record["draft"]] == [0.5, 0.25, 0.125, 0.0625]
    assert (record["round"], record["emitted"], record["text"], record["after"]["text"]) == (3, 3, "abX", "!")
    assert "anchor" not in record and "node" not in record["bonus"]


@pytest.mark.parametrize(
    ("said", "emitted", "proposed", "carried", "accepted", "expected", "bonus"),
    [
        ("abc", "abc", "ab", 2, 2, "acc acc", "c"),
        ("X", "X", "ab", 2, 0, "rej unr", "X"),
        ("abX", "a", "abc", 3, 2, "acc unu unu", None),  # the answer ended within the draft
        ("abX", "ab", "abc", 3, 2, "acc acc unu", None),
        ("abX", "abX", "abcd", 3, 2, "acc acc rej for", "X"),  # a processor cut the draft
        ("abX", "abX", "abcd", 2, 2, "acc acc for for", "X"),
        ("X", "X", "", 0, 0, "", "X"),
    ],
)
def test_verdicts(
    said: str, emitted: str, proposed: str, carried: int, accepted: int, expected: str, bonus: str | None
) -> None:
    made = Round(1, ids(said), drafted(proposed), carried, accepted)
    record = round_record(made, ids(emitted), ord("!"), LETTERS)
    assert verdicts(record) == expected
    assert (record["bonus"] and record["bonus"]["text"]) == bonus
    assert all(t["source"] == "drafter" for t in record["draft"])


def test_a_drafter_that_tells_no_probabilities_has_none() -> None:
    record = round_record(Round(1, ids("ab"), Draft(ids("a")), 1, 1), ids("ab"), ord("!"), LETTERS)
    assert record["draft"][0].keys() == {"token", "text", "source", "verdict"}


# --- nodes


@pytest.mark.parametrize("graph", [full_graph(), *(random_graph(seed) for seed in range(6))])
def test_the_nodes_are_those_that_the_drafter_stands_on(graph: Graph) -> None:
    random = np.random.default_rng(0)
    seen = []
    for _ in range(30):
        drafter = GraphDrafter(graph, num_draft_tokens=6)
        tokens = random.integers(0, graph.vocab_size, size=5).tolist()
        draft = drafter.draft(Context(tokens, random.normal(size=graph.hidden_size).astype(np.float32)), 6)
        nodes = walk_nodes(graph, draft, tokens[-1])
        assert len(nodes) == len(draft.tokens) + 1
        stands = (
            nodes[-1] if len(draft.tokens) < 6 else nodes[-2]
        )  # nothing is asked behind the last token of a full draft
        assert stands == next(s for s in drafter.sources.all if s.name == "edge").node
        for before, token, after in zip(nodes, draft.tokens, nodes[1:], strict=False):
            if before != NO_NODE and token != graph.walk[0][before] >> CELL_BITS:
                assert after == graph.step(before, token)
        assert nodes[0] == graph.step(draft.anchor, tokens[-1])
        seen += nodes
    assert set(seen) - {NO_NODE}


def test_records_tell_nodes_and_where_the_walk_is_lost() -> None:
    graph = full_graph()
    draft = Draft([11, 59, 12], [0.9] * 3, ["edge"] * 3, anchor=4)
    nodes = [node if node != NO_NODE else None for node in walk_nodes(graph, draft, 10)]
    record = round_record(Round(1, [11, 59, 12, 13], draft, 3, 3), [11, 59, 12, 13], 10, LETTERS, graph)
    assert [*(t["node"] for t in record["draft"]), record["bonus"]["node"]] == nodes
    assert record["anchor"] == 4
    resting = round_record(Round(2, [14]), [14], 13, LETTERS, graph)
    assert resting["anchor"] is None and resting["bonus"]["node"] is None


# --- a whole answer


def responses(compiled: Compiled, prompt: list[int], **options: Any) -> Iterator[GenerationResponse]:
    teacher = compiled.teacher
    return stream_generate(teacher.model, teacher.tokenizer, prompt, options.pop("max_tokens", LENGTH), **options)


@pytest.fixture(scope="module")
def answers(compiled: Compiled) -> list[list[int]]:
    """What plain decoding says to the first prompts."""
    model, tokenizer = compiled.teacher.model, compiled.teacher.tokenizer
    prompts = [prompt_of(compiled, row) for row in range(3)]
    return [[r.token for r in mlx_lm.stream_generate(model, tokenizer, p, max_tokens=LENGTH)] for p in prompts]


def prompt_of(compiled: Compiled, row: int) -> list[int]:
    sequence = compiled.sequences[row]
    return sequence.tokens[: sequence.answer_start]


def drafters(compiled: Compiled, row: int) -> dict[str, dict[str, Any]]:
    truth = compiled.sequences[row].tokens
    return {
        "graph": {"graph": compiled.graph, "num_draft_tokens": 6},
        "auto": {"graph": compiled.graph},
        "lookup": {"drafter": LookupDrafter(num_draft_tokens=5)},
        "oracle": {"drafter": Oracle([*truth, 5, 6, 7, 8, 9], block=9, right=0.8)},  # drafts behind the end too
        "none": {},
    }


def check_sums(records: list[dict[str, Any]], statistics: Statistics) -> None:
    """The rounds say the same as the response's statistics."""
    rounds, summary = records[:-1], records[-1]
    judged = [t for r in rounds for t in r["draft"] if t["verdict"] != "forbidden"]
    kept = [t for t in judged if t["verdict"] == "accepted"]
    assert [r["kind"] for r in records] == ["round"] * len(rounds) + ["summary"]
    assert [r["round"] for r in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) == statistics.forwards == summary["calls"]
    assert sum(r["emitted"] for r in rounds) == statistics.tokens == rounds[-1]["tokens"] == summary["tokens"]
    assert len(judged) == statistics.drafted == summary["drafted"]
    assert len(kept) == statistics.accepted == summary["accepted"]
    assert sum(any(t["verdict"] != "forbidden" for t in r["draft"]) for r in rounds) == statistics.rounds_drafted
    bonuses = sum(r["bonus"] is not None for r in rounds)
    sources = {name: sum(t["source"] == name for t in kept) for name in {t["source"] for t in kept}}
    assert sources | ({"teacher": bonuses} if bonuses else {}) == statistics.sources == summary["sources"]
    assert sum(c["drafted"] for c in summary["by_source"].values()) == statistics.drafted
    assert {n: c["accepted"] for n, c in summary["by_source"].items() if c["accepted"]} == sources
    assert summary["acceptance_rate"] == statistics.acceptance_rate


@pytest.mark.parametrize("name", ["graph", "auto", "lookup", "oracle", "none"])
@pytest.mark.parametrize("limits", [{}, {"max_tokens": 7}, {"stop": ["e"]}], ids=["whole", "cut", "stop"])
def test_rounds_add_up_to_the_statistics_and_the_tokens_stay_plains(
    compiled: Compiled, answers: list[list[int]], name: str, limits: dict[str, Any]
) -> None:
    words = Words(compiled.teacher.tokenizer)
    for row in range(3):
        prompt, options = prompt_of(compiled, row), drafters(compiled, row)[name] | limits
        found = list(responses(compiled, prompt, **options))
        records = list(annotate(found, words, prompt[-1]))
        check_sums(records, found[-1].statistics)
        plain = answers[row][: limits.get("max_tokens", LENGTH)]
        tokens = records[-1]["token_ids"]
        assert tokens == plain[: len(tokens)]
        if "stop" not in limits:
            assert tokens == plain
        assert tokens == [t for r in records[:-1] for t in _tokens(r)]
        assert [r["after"]["token"] for r in records[1:-1]] == [_tokens(r)[-1] for r in records[:-2]]
        assert "".join(r["text"] for r in records[:-1]).isprintable()
        if name == "graph":
            assert records[-1]["accepted"] > 0


def _tokens(record: dict[str, Any]) -> list[int]:
    bonus = [] if record["bonus"] is None else [record["bonus"]["token"]]
    return [t["token"] for t in record["draft"] if t["verdict"] == "accepted"] + bonus


class Untold:
    """A grammar that does not say what it forces: only what it forbids."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.allowed, self.process_rows = getattr(inner, "allowed", None), getattr(inner, "process_rows", None)

    def for_answer(self, prompt: list[int], **where: Any) -> Untold:
        return Untold(self.inner.for_answer(prompt, **where))

    def __call__(self, tokens: Any, logits: Any) -> Any:
        return self.inner(tokens, logits)


def test_sums_hold_where_a_grammar_forbids_and_forces_drafts(compiled: Compiled) -> None:
    pytest.importorskip("llguidance")
    from daari_mlx.decode.grammar import json_schema_processor

    tokenizer, prompt = compiled.teacher.tokenizer, prompt_of(compiled, 0)
    schema = {"type": "object", "properties": {"a": {"enum": ["xylophone", "yy"]}}, "required": ["a"]}
    processor = json_schema_processor(tokenizer, schema)

    def held(processor: Any, **options: Any) -> tuple[set[str], set[str]]:
        drafter = Oracle([*prompt, *truth], block=6)
        found = list(responses(compiled, prompt, logits_processors=[processor], drafter=drafter))
        assert [r.token for r in found] == truth
        records = list(annotate(found, Words(tokenizer), prompt[-1]))
        check_sums(records, found[-1].statistics)
        drafts = [t for r in records[:-1] for t in r["draft"]]
        return {t["verdict"] for t in drafts}, {t["source"] for t in drafts}

    truth = [r.token for r in responses(compiled, prompt, logits_processors=[processor])]
    assert {"accepted", "forbidden"} <= held(Untold(processor))[0]
    told, sources = held(processor)
    assert sources == {"drafter", "schema"} and "forbidden" not in told, "it is not drafted in the first place"


@pytest.mark.parametrize("length", [{"num_draft_tokens": 5}, {"cost": Cost((1, 33), (1.0, 60.0))}], ids=["5", "rests"])
def test_what_is_shown_is_what_the_drafter_said(compiled: Compiled, length: dict[str, Any]) -> None:
    prompt = prompt_of(compiled, 1)
    asked: list[Draft] = []

    class Watched(GraphDrafter):
        def draft(self, context: Context, limit: int, pending: int = 0) -> Draft:
            asked.append(super().draft(context, limit, pending))
            return asked[-1]

    found = responses(compiled, prompt, drafter=Watched(compiled.graph, **length))
    records = list(annotate(found, Words(compiled.teacher.tokenizer), prompt[-1], compiled.graph))
    told = [r for r in records[:-1] if r["anchor"] is not None]
    assert len(told) > 1
    for record, draft in zip(told, asked, strict=True):  # also where the draft is empty
        assert record["anchor"] == draft.anchor
        assert [t["token"] for t in record["draft"]] == draft.tokens
        assert [t.get("probability") for t in record["draft"]] == draft.probabilities
        assert [t["source"] for t in record["draft"]] == draft.sources
        paths = np.cumprod(draft.probabilities) if draft.tokens else []
        np.testing.assert_allclose([t["path_probability"] for t in record["draft"]], paths, rtol=1e-12)
    assert (len(told) < len(records) - 1) == ("cost" in length)


def test_a_round_is_told_as_soon_as_it_is_decoded(compiled: Compiled) -> None:
    prompt, forwards = prompt_of(compiled, 0), 0

    def watched() -> Iterator[GenerationResponse]:
        nonlocal forwards
        for response in responses(compiled, prompt, graph=compiled.graph, num_draft_tokens=3):
            forwards = response.statistics.forwards
            yield response

    for number, record in enumerate(annotate(watched(), Words(compiled.teacher.tokenizer), prompt[-1]), start=1):
        assert record["kind"] == "summary" or number == forwards == record["round"]
