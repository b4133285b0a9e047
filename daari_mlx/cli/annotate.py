"""The command that shows how an answer was decoded: annotate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import refuse_unused, takes
from daari_mlx.cli.options.names import FEATURES, DrafterName, RowsName, SchemaName, TeacherName
from daari_mlx.decode.options import Length, Sampling
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, number
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.show.annotate_lines import Screen
    from daari_mlx.teacher.load import Teacher
    from daari_mlx.text.data import Prompt

PROMPT_END = 600  # tokens of a prompt's end that are turned into words: more than the screen shows

MaybePrompt = Annotated[
    str | None, Option("What to answer, in place of --data ('-' reads from stdin).", "TEXT", ("--prompt", "-p"))
]
JsonLines = Annotated[
    bool, Option("Print a line of JSON for each round as it comes, and one for the whole answer.", flags=("--json",))
]


@takes(
    "model graph data idx prompt draft_model drafter adapter_path trust_remote_code split skip_bad_rows system_prompt "
    f"chat_template_config {FEATURES} max_tokens num_draft_tokens temp top_p top_k seed json_schema json_whitespace "
    "stop no_color as_json",
    data=None,
    split="test",
    max_tokens=100,
)
def annotate(
    ctx: typer.Context,
    teacher_name: TeacherName,
    rows_name: RowsName,
    drafter_name: DrafterName,
    length: Length,
    sampling: Sampling,
    schema_name: SchemaName,
    idx: Annotated[int, number("Which row of --data, counted from 0 and without bad rows.", 0)] = 0,
    prompt: MaybePrompt = None,
    system_prompt: words.SystemPrompt = None,
    no_color: Annotated[bool, Option("No colours; there are none in a pipe or with NO_COLOR.")] = False,
    as_json: JsonLines = False,
) -> None:
    """Show how an answer is made, draft by draft. Who drafted what, and what the model said to it."""
    if (rows_name.data is None) == (prompt is None):
        raise typer.BadParameter("give --data and --idx, or --prompt: one of them", ctx=ctx)
    if rows_name.data is None:
        refuse_unused(ctx, f"idx split skip_bad_rows {FEATURES}", "goes with --data: leave it out")
    else:
        refuse_unused(ctx, "system_prompt", "goes with --prompt: a row of --data brings its own")
        rows_name.check()
    from daari_mlx.cli import prompts
    from daari_mlx.decode.generate import stream_generate
    from daari_mlx.ground.legible import Words
    from daari_mlx.show.annotate import annotate as records
    from daari_mlx.show.annotate_lines import Screen, console_for
    from daari_mlx.text.data import Prompt

    graph = drafter_name.load_graph()
    text = None if prompt is None else prompts.read_prompt(prompt)
    teacher = teacher_name.load()
    processors = schema_name.load(teacher.tokenizer)
    if text is None:
        asked = _row(rows_name, idx, teacher)
    else:
        how: dict[str, Any] = {"system_prompt": system_prompt, "chat_template_config": rows_name.chat_template_config}
        asked = Prompt(prompts.encode(teacher.tokenizer, text, **how), 0, "", None)
    drafting = drafter_name.load(graph, teacher, trust_remote_code=teacher_name.trust_remote_code)
    sampling.start()
    legible = Words(teacher.tokenizer)
    screen = None if as_json else Screen(console_for(plain=no_color), nodes=graph is not None)
    with report.prefill_bar() as progress:
        responses = stream_generate(
            teacher.model,
            teacher.tokenizer,
            asked.tokens,
            sampler=sampling.sampler(teacher.tokenizer),
            logits_processors=processors,
            prompt_progress_callback=progress,
            **drafting.options(),
            **asdict(length),
        )
        show = _printer(screen, asked, legible)
        for record in records(responses, legible, asked.tokens[-1], graph):
            show(record)


def _row(rows_name: RowsName, idx: int, teacher: Teacher) -> Prompt:
    """The prompt of one row."""
    from daari_mlx.text.data import read_prompts

    found = rows_name.read(read_prompts, teacher, limit=idx + 1)
    if idx >= len(found):
        raise DaariError(
            f"--idx is {idx}, but the good rows of {rows_name.data} end at {len(found) - 1}: give a number up to that."
        )
    return found[idx]


def _printer(screen: Screen | None, asked: Prompt, words: Any) -> Callable[[dict[str, Any]], None]:
    """What prints each record as it comes; the prompt is told with the first, so that a refusal leaves stdout empty."""
    if screen is None:
        return lambda record: print(report.as_json(record | _source(record, asked)), flush=True)
    told = False

    def show(record: dict[str, Any]) -> None:
        nonlocal told
        if not told:
            screen.prompt(asked.source, len(asked.tokens), words(asked.tokens[-PROMPT_END:]))
            told = True
        (screen.round if record["kind"] == "round" else screen.summary)(record)

    return show


def _source(record: dict[str, Any], asked: Prompt) -> dict[str, str | None]:
    """Where the prompt comes from, for the record of the whole answer; None where it was given as text."""
    return {"prompt_source": asked.source or None} if record["kind"] == "summary" else {}
