"""The README.md card that travels with a graph: YAML that the Hub understands, then words for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from daari_mlx.teacher.fingerprint import describe

TAGS = ["mlx", "daari-mlx", "speculative-decoding"]


def card_text(
    config: dict[str, Any],
    stats: dict[str, Any],
    *,
    repo: str | None = None,
    base_model: str | None = None,
    license: str | None = None,
    records: Sequence[dict[str, Any]] = (),
) -> str:
    """The card of one artifact, as Markdown.

    Args:
        config: its ``config.json``.
        stats: its ``compile_stats.json``.
        repo: where on the Hub it lies, ``user/name``; None for one on this machine.
        base_model: the teacher's name on the Hub.
        license: the Hub's word for its licence; None says none.
        records: benchmarks of it on held-out prompts, as :meth:`daari_mlx.measure.records.BenchRecord.as_dict` returns
            them.
    """
    settings, teacher = config["settings"], config["teacher"]
    rows = [
        ("states", f"{stats.get('states', 0):,}"),
        ("sequences", f"{stats.get('sequences', 0):,}"),
        ("nodes", f"{stats.get('nodes', 0):,}"),
        ("edges", f"{stats.get('edges', 0):,}"),
        ("mean top-edge mass", f"{stats.get('top_edge_mass', 0.0):.3f}"),
        ("path reuse (states per distinct edge)", f"{stats.get('path_reuse', 0.0):.1f}"),
        ("answers", settings.get("answers", "?")),
        ("states of layer", str(config["layer"])),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    adapter = " --adapter-path ADAPTER" if teacher.get("adapter") else ""
    return f"""---
{_front_matter(repo, base_model, license, records)}
---
# A daari-mlx graph

It drafts tokens for one teacher, which verifies every one of them: the words are the teacher's own, they only come
sooner.

Teacher: {describe(teacher)}

```
daari-mlx generate --model {teacher.get("source") or "MODEL"}{adapter} --graph {repo or "<this folder>"} --prompt "..."
```

{_figures(records)}| | |
|---|---|
{table}

It holds cluster centres of hidden states, counts of what followed them, and the answers it was compiled from as token
ids: whoever has the teacher's tokenizer can read those answers, and what they quote of their prompts. Of the prompts
themselves it holds hashes. It holds no weights of the teacher, and nothing that runs.
"""


def _front_matter(
    repo: str | None, base_model: str | None, license: str | None, records: Sequence[dict[str, Any]]
) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type="held-out-prompts",
            dataset_name=f"{record['n']} held-out prompts",
            metric_type=kind,
            metric_name=name,
            metric_value=round(value, 4),
        )
        for record in records[-1:]  # the Hub shows one number of a kind: the newest
        for kind, name, value in (
            ("tokens_per_forward", "tokens per forward", record["tokens_per_forward"]),
            ("acceptance_rate", "accepted draft tokens / drafted", record["acceptance_rate"]),
            ("decode_ratio", "decoding time, plain / drafted, median", record["decode_ratio"]["median"]),
        )
    ]
    data = ModelCardData(
        license=license,
        library_name="daari-mlx",
        pipeline_tag="text-generation",
        tags=TAGS,
        base_model=base_model,
        # of the relations that the Hub knows, the one for what adds to a model and holds none of it
        base_model_relation=None if base_model is None else "adapter",
        model_name=(repo or "graph").split("/")[-1] if results else None,
        eval_results=results or None,
    )
    return data.to_yaml().rstrip()


def _figures(records: Sequence[dict[str, Any]]) -> str:
    """The benchmarks as a table, losing rows in it; empty without one."""
    if not records:
        return ""
    lines = [
        "Against `mlx_lm.stream_generate` in the same process, on prompts that it was not compiled from:",
        "",
        "| prompts | draft tokens | answers identical | tokens per forward | accepted "
        "| decoding, plain / drafted: median (quartiles) | slower than plain | where |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for record in records:
        count, ratio, versions = record["n"], record["decode_ratio"], record["versions"]
        cells = [
            f"{count} of {record['mean_tokens']:.0f} tokens",
            str(record["num_draft_tokens"]),
            f"{record['identity']['identical']} of {count}",
            f"{record['tokens_per_forward']:.2f}",
            f"{record['acceptance_rate']:.0%}",
            f"{ratio['median']:.2f}x ({ratio['lower']:.2f}–{ratio['upper']:.2f})",
            f"{record['losing']['count']} of {count}",
            f"{record['device']}, {record['dtype']}, mlx {versions['mlx']}, mlx-lm {versions['mlx-lm']}",
        ]
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join([*lines, "", ""])
