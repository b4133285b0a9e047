"""How results are printed: plain aligned tables and lines, made from the records that the other modules return."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from daari_mlx.ground.accept import TEACHER
from daari_mlx.ground.legible import visible
from daari_mlx.ground.progress import Bar, bar
from daari_mlx.ground.progress import note as note
from daari_mlx.show.shades import is_dumb

if TYPE_CHECKING:
    from daari_mlx.cost.probe import ProbeRecord
    from daari_mlx.decode.responses import GenerationResponse

RULE = "=" * 10  # what mlx-lm prints before and after the text


@contextmanager
def while_loading(name: str) -> Iterator[None]:
    """A line at the terminal that says what is being loaded, as long as it is."""
    shown = sys.stderr.isatty() and not is_dumb()
    if shown:
        print(f"loading {visible(name, ' ')} …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def as_json(value: Any) -> str:
    """JSON on one line; what JSON does not know is written as text, and what stdout cannot show as JSON escapes it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return json.dumps(value, default=str)
    return text


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Two aligned columns; rows with an empty value are left out."""
    kept = [(name, value) for name, value in rows if value]
    width = max((len(name) for name, _ in kept), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in kept)


def size_text(count: float) -> str:
    """Bytes in words, e.g. ``"1.3 MB"``."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"


def seconds_text(stages: dict[str, float]) -> str:
    """Stages and their seconds in one line, the sum in front."""
    parts = " + ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items())
    return f"{sum(stages.values()):.1f} = {parts}"


def count_text(value: int | None) -> str:
    """A count with separators; empty where it is not known."""
    return "" if value is None else f"{value:,}"


def extract_text(record: dict[str, Any], workdir: str) -> str:
    """One line about what lies in a workdir.

    Args:
        record: as :func:`daari_mlx.compile.extract.extraction_record` returns it.
    """
    counts = f"{record['sequences']:,} sequences, {record['tokens']:,} tokens, {record['shards']:,} shards"
    return f"{workdir}: {counts}; seconds {seconds_text(record['seconds'])}"


def compile_text(stats: dict[str, Any], path: str, verdict: str) -> str:
    """A small table of a compilation.

    Args:
        stats: the graph's ``compile_stats.json``.
        path: where the graph lies.
        verdict: whether it will pay, in a sentence.
    """
    settings = stats["settings"]
    asked = settings["nodes_asked"]
    derived = f"nodes {settings['nodes']:,} ({'auto' if asked == 'auto' else 'as asked'})"
    answers = settings["answers"]
    if answers == "teacher":
        answers += f" (at most {settings['max_tokens']} tokens)"
    cut = stats.get("answers_cut")
    limit = f"by --max-tokens {settings['max_tokens']}: the graph knows nothing of what comes after"
    return table(
        [
            ("graph", path),
            *count_rows(stats),
            ("seconds", seconds_text(stats["seconds"])),
            ("peak memory", f"{stats['peak_mb']:,.0f} MB"),
            (
                "settings",
                f"{derived}, layer {settings['layer']}, {settings['dimensions']} dimensions, answers {answers}, "
                f"seed {settings['seed']}",
            ),
            (
                "answers cut",
                f"{cut:,} of {stats['sequences']:,}, {limit}; give a larger --max-tokens if answers are longer in use"
                if cut
                else "",
            ),
            ("will it pay?", verdict),
        ]
    )


def count_rows(stats: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of a table that say what a graph counts; a figure that ``stats`` lacks gets no value."""
    mass, reuse, size = stats.get("top_edge_mass"), stats.get("path_reuse"), stats.get("bytes")
    return [
        *((name, count_text(stats.get(name))) for name in ("states", "sequences", "nodes", "edges", "steps")),
        ("top-edge mass", "" if mass is None else f"{mass:.3f}"),
        ("path reuse", "" if reuse is None else f"{reuse:.1f} states for each distinct edge"),
        ("size", "" if size is None else size_text(size)),
    ]


def probe_text(record: ProbeRecord, kept: str | None, blas: str) -> str:
    """T(m) as a compact table, and where it was kept.

    Args:
        kept: the file; None where it was not kept.
        blas: which BLAS multiplies, in words.
    """
    first = record.seconds[0]
    cells = [f"{m:>3} {s * 1e3:>9.2f} {s / first:>9.2f}" for m, s in zip(record.rows, record.seconds, strict=True)]
    lines = -(-len(cells) // 3)
    columns = [cells[start : start + lines] for start in range(0, len(cells), lines)]
    head = "     ".join(["  m        ms T(m)/T(1)"] * len(columns))
    body = ["     ".join(column[line] for column in columns if line < len(column)) for line in range(lines)]
    batches = ", ".join(f"T({b}, {m}) {s / first:.2f}" for b, m, s in record.batches) or "not measured"
    if kept is not None:
        where = kept
    elif record.noisy:
        where = f"not kept: too noisy (spread {record.spread:.0%}); run it again on a quiet machine"
    else:
        where = "not kept: the cache folder cannot be written (DAARI_MLX_CACHE names another)"
    about = [
        ("device", str(record.key["chip"])),
        ("BLAS", blas),
        ("mlx", str(record.key["mlx"])),
        ("context", f"{record.context} tokens, median of {record.repeats}, spread {record.spread:.0%}"),
        ("batches", batches),
        ("kept in", where),
    ]
    return "\n".join([head, *body, "", table(about)])


def drafting_text(response: GenerationResponse) -> str:
    """What drafting did to one answer: tokens per forward and acceptance, and why there was none or no more of it."""
    off = f"off: {response.drafting_off}"
    if response.drafting_off is not None and not response.statistics.drafted:
        return off
    figures = f"{response.tokens_per_forward:.2f} tokens per forward, {response.acceptance_rate:.0%} accepted"
    return figures if response.drafting_off is None else f"{figures}; then {off}"


def generate_json(text: str, tokens: list[tuple[int, str]], response: GenerationResponse) -> dict[str, Any]:
    """What ``generate --json`` prints.

    Args:
        text: the whole answer.
        tokens: the id of each token, the end-of-sequence token included, and which source it came from.
        response: the last one.
    """
    return {
        "text": text,
        "token_ids": [token for token, _ in tokens],
        "token_sources": [source for _, source in tokens],
        "finish_reason": response.finish_reason,
        "prompt_tokens": response.prompt_tokens,
        "prompt_tps": response.prompt_tps,
        "generation_tps": response.generation_tps,
        "peak_memory_gb": response.peak_memory,
        **response.statistics.as_dict(),
    }


def stream_answer(responses: Iterable[GenerationResponse], *, verbose: bool, json_too: bool, drafts: bool) -> None:
    """Print an answer as mlx-lm's generate does, with the drafting's figures.

    Args:
        verbose: stream the text and print figures; else the text alone, at the end.
        json_too: print one JSON object instead of both.
        drafts: whether drafting was asked for; if so, and the text alone is printed, stderr tells why there was none.
    """
    text, last = "", None
    tokens: list[tuple[int, str]] = []
    stream = verbose and not json_too
    for last in responses:
        if stream and not tokens:  # not before there is an answer: what is refused leaves stdout empty
            print(RULE)
        text += last.text
        tokens.append((last.token, last.source or TEACHER))
        if stream:
            print(last.text, end="", flush=True)
    assert last is not None  # max_tokens is at least 1
    if json_too:
        print(as_json(generate_json(text, tokens, last)))
    elif not verbose:
        print(text)
    if not stream:
        if drafts and last.drafting_off is not None:
            note(f"note: drafting was off: {last.drafting_off}")
        return
    print(f"\n{RULE}")
    if not text:
        print("No text generated for this prompt")
    print(f"Prompt: {last.prompt_tokens} tokens, {last.prompt_tps:.3f} tokens-per-sec")
    print(f"Generation: {last.generation_tokens} tokens, {last.generation_tps:.3f} tokens-per-sec")
    print(f"Drafting: {drafting_text(last)}")
    print(f"Peak memory: {last.peak_memory:.3f} GB")


@contextmanager
def prefill_bar() -> Iterator[Callable[[int, int], None]]:
    """A callback for mlx-lm's ``prompt_progress_callback`` that draws a bar on stderr where prefill takes long."""
    drawn: list[Bar] = []

    def report(done: int, total: int) -> None:
        if not drawn:
            drawn.append(bar(total=total, desc="prefill", unit="tok"))
        drawn[0].update(done - drawn[0].n)
        if done >= total:
            drawn[0].close()

    try:
        yield report
    finally:
        for shown in drawn:
            shown.close(finished=False)


def command_line() -> str:
    """What the user typed, for a record."""
    return shlex.join(["daari-mlx", *sys.argv[1:]])
