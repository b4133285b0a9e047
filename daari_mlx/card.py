"""The README.md card that travels with a graph."""

from __future__ import annotations

from typing import Any

from daari_mlx.fingerprint import describe


def card_text(config: dict[str, Any], stats: dict[str, Any]) -> str:
    """The card of one artifact, as Markdown.

    Args:
        config: its ``config.json``.
        stats: its ``compile_stats.json``.
    """
    settings = config["settings"]
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
    source = config["teacher"].get("source", "MODEL")
    return f"""---
library_name: daari-mlx
tags: [mlx, daari-mlx, speculative-decoding]
---
# A daari-mlx graph

It drafts tokens for one teacher, which verifies every one of them: the words are the teacher's own, they only come
sooner.

Teacher: {describe(config["teacher"])}

| | |
|---|---|
{table}

```
daari-mlx generate --model {source} --graph <this folder> --prompt "..."
```

It holds cluster centres of hidden states, token ids and transition counts; no text, no weights, nothing that runs.
What the teacher answered during compilation can in part be read back from the token ids.
"""
