"""What drafts would gain in a batch on a machine whose T(m) was published: the batch's own rules over recorded streams.

    python scripts/bench/bench_batch_projection.py STREAMS GRAPH [--rows 1,2,4,8,16,32] [--out FILE]

STREAMS are held-out answers (bench --save-streams). Rows that end are replaced by the next answers. A round of
B rows and m columns takes T(B * m), a round without drafts T(B): the M3 Max's curve for 4-bit weights, which is of one
large matrix product, goes on in tiles of 32 rows, each as dear as the first. Attention, drafting, sampling and reading
prompts are not counted, and no such machine was here: these are projections, not measurements.
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recording import origin, tell

import daari_mlx  # noqa: F401  brings a real BLAS before MLX loads
from daari_mlx.batch.lengths import best_common_length
from daari_mlx.cost.batch_cost import BatchCost
from daari_mlx.cost.curves import CURVES
from daari_mlx.cost.length import Cost
from daari_mlx.decode.answer import Answer
from daari_mlx.decode.limits import Options
from daari_mlx.draft.drafter import GraphDrafter
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.accept import Statistics, accept_block
from daari_mlx.measure.streams import Stream, Streams, load_streams
from daari_mlx.share.find import load_graph
from daari_mlx.teacher.judge import Verified

TILE, TILES = 32, 40  # rows of a tile, and how many tiles the curve is drawn on for


def in_tiles(cost: Cost) -> Cost:
    """A curve of which 33 rows were measured, drawn on: every further tile of 32 rows costs what the first costs."""
    full = cost(TILE)
    more = [(TILE * k + 1 + at, full * (k + 1)) for k in range(1, TILES) for at in (0, TILE - 1)]
    return Cost((*cost.rows[:-1], *(m for m, _ in more)), (*cost.relative[:-1], *(t for _, t in more)))


@dataclass
class Slot:
    """A row that is being answered."""

    stream: Stream
    answer: Answer
    drafter: GraphDrafter


def project(streams: Streams, graph: Graph, rows: int, cost: Cost) -> dict[str, Any]:
    """All streams through so many rows; the figures."""
    waiting, spare, running = deque(streams.items), list[GraphDrafter](), list[Slot]()
    batch, time, plain, parked, counts, rounds = BatchCost(cost), 0.0, 0.0, False, Statistics(), 0
    lengths = deque(len(s.answer) for s in streams.items)
    slots = [lengths.popleft() for _ in range(min(rows, len(lengths)))]
    while slots:  # without drafts: a token a row and round
        plain += cost(len(slots))
        slots = [left - 1 for left in slots if left > 1]
        while lengths and len(slots) < rows:
            slots.append(lengths.popleft())
    while waiting or running:
        while waiting and len(running) < rows:
            running.append(_begin(waiting.popleft(), spare, graph, cost, streams, counts))
        rounds += 1
        offers = [slot.answer.offer(0) for slot in running]
        length = best_common_length([o.probabilities for o in offers], [0] * len(running), batch, parked=parked)
        parked = length == 0
        plans = [slot.answer.take(offer, length, rounds) for slot, offer in zip(running, offers, strict=True)]
        time += cost(len(running) * (1 + max(len(plan.draft.tokens) for plan in plans)))
        for slot, plan in zip(running, plans, strict=True):
            done, states = slot.answer.emitted, slot.stream.states[graph.layer]
            verdicts = slot.stream.answer[done : done + len(plan.draft.tokens) + 1]
            said = accept_block(plan.draft.tokens, verdicts)
            verified = Verified(plan.draft.tokens, said, [None] * len(said), states=states[done + 1 :][: len(said)])  # type: ignore[list-item]
            for _ in slot.answer.emit(plan, verified):
                pass
        spare += [slot.drafter for slot in running if slot.answer.emitted == len(slot.stream.answer)]
        running = [slot for slot in running if slot.answer.emitted < len(slot.stream.answer)]
    return {
        "rows": rows,
        "gain": plain / time,
        "tokens_per_forward": counts.tokens_per_forward,
        "acceptance_rate": counts.acceptance_rate,
        "drafted_a_forward": counts.drafted / counts.forwards,
    }


def _begin(
    stream: Stream, spare: list[GraphDrafter], graph: Graph, cost: Cost, streams: Streams, counts: Statistics
) -> Slot:
    drafter = spare.pop() if spare else GraphDrafter(graph, cost=cost, ends=streams.ends)
    options = Options(max_tokens=streams.max_tokens, context_length=streams.context_length)
    first = stream.states[graph.layer][0]
    answer = Answer(
        list(stream.prompt), options, drafter, sys.maxsize, counts, cached=len(stream.prompt) - 1, state=first
    )
    return Slot(stream, answer, drafter)


def main() -> None:
    """Project and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("streams", type=Path)
    parser.add_argument("graph")
    parser.add_argument("--rows", default="1,2,4,8,16,32")
    parser.add_argument("--out", metavar="FILE", help="append the record to this file")
    args = parser.parse_args()
    streams, graph, curve = load_streams(args.streams), load_graph(args.graph), CURVES["m3-max-4bit"]
    cost = in_tiles(curve.cost)
    found = [project(streams, graph, int(rows), cost) for rows in args.rows.split(",")]
    about = {"what": "projected batches", "curve": curve.name, "source": curve.source, "n": len(streams.items)}
    tell({**origin(), **about, "sizes": found}, args.out)


if __name__ == "__main__":
    main()
