"""The command that folds what was learnt into its graph: learn."""

from __future__ import annotations

from typing import Annotated

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.ground.option import Option
from daari_mlx.show import report


@takes()
def learn(
    graph: Annotated[str, Option("The path that was given to --learn.", "GRAPH", by_place=True)],
    max_bytes: words.MaxBytes = None,
    as_json: words.Json = False,
) -> None:
    """Bring all that --learn heard into its graph. No model is needed; how well the graph predicts is counted too."""
    from daari_mlx.compile.budget import MAX_BYTES
    from daari_mlx.graph.artifact import load_folder, read_stats
    from daari_mlx.learn.start import learner_at
    from daari_mlx.measure.prospect import first_verdict
    from daari_mlx.show.learnt import learning, learnt_line

    learner = learner_at(graph, max_bytes=max_bytes or MAX_BYTES)
    with learning(learner):
        learner.fold(held_out=True)
    stats = read_stats(graph)
    verdict = first_verdict(stats, load_folder(graph), graph)
    if as_json:
        print(report.as_json({"graph": graph, **stats, "verdict": verdict}))
        return
    print(report.compile_text(stats, graph, verdict))
    print(f"learnt from {learnt_line(stats['learnt'])}")
