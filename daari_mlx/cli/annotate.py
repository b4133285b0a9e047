"""The command that shows how an answer was decoded: annotate."""

from __future__ import annotations

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import TYPE_CHECKING, Annotated, Any

import typer

from daari_mlx.cli.options import common as options
from daari_mlx.cli.options import draft as options_draft
from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.show.annotate_lines import Screen
    from daari_mlx.text.data import Prompt

PROMPT_END = 600  # tokens of a prompt's end that are turned into words: more than the screen shows

MaybePrompt = Annotated[
    str | None,
    typer.Option("--prompt", "-p", metavar="TEXT", help="What to answer, in place of --data ('-' reads from stdin)."),
]
Index = Annotated[int, options.number("--idx", min=0, help="Which good row of --data, from 0.")]
NoColour = Annotated[bool, typer.Option("--no-color", help="No colours; there are none in a pipe or with NO_COLOR.")]
JsonLines = Annotated[
    bool, typer.Option("--json", help="Print a line of JSON for each round as it comes, and one for the whole answer.")
]


def annotate(
    ctx: typer.Context,
    model: options.Model,
    graph: options.MaybeGraph = None,
    data: options.MaybeData = None,
    idx: Index = 0,
    prompt: MaybePrompt = None,
    draft_model: options_draft.DraftModel = None,
    drafter: options_draft.DrafterKind = None,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    split: options.Split = "test",
    skip_bad_rows: options.SkipBadRows = False,
    system_prompt: options.SystemPrompt = None,
    chat_template_config: options.ChatTemplateConfig = None,
    max_tokens: options.MaxTokens = options.MAX_TOKENS_GENERATE,
    num_draft_tokens: options.NumDraftTokens = "auto",
    temp: options.Temp = 0.0,
    top_p: options.TopP = 1.0,
    top_k: options.TopK = 0,
    seed: options.MaybeSeed = None,
    json_schema: options.JsonSchema = None,
    stop: options.Stop = None,
    no_color: NoColour = False,
    as_json: JsonLines = False,
) -> None:
    """Watch it think: each round's draft, and what the teacher said to it. Nothing changes in the answer."""
    if (data is None) == (prompt is None):
        raise typer.BadParameter("give --data and --idx, or --prompt: one of them", ctx=ctx)
    if data is None:
        options.refuse_unused(ctx, ("idx", "split", "skip_bad_rows"), "goes with --data: leave it out")
    else:
        options.refuse_unused(ctx, ("system_prompt",), "goes with --prompt: a row of --data brings its own")
        options.check_exists(data)
    from daari_mlx.cli import prompts
    from daari_mlx.decode.generate import stream_generate
    from daari_mlx.decode.named import GRAPHS, choose_kind, make_drafter
    from daari_mlx.ground.legible import Words
    from daari_mlx.share.find import load_graph
    from daari_mlx.show.annotate import annotate as records
    from daari_mlx.show.annotate_lines import Screen, console_for
    from daari_mlx.teacher.load import load_teacher
    from daari_mlx.text.data import Prompt

    kind = choose_kind(drafter, graph, draft_model)
    known = load_graph(graph) if graph and kind in GRAPHS else None
    said = None if prompt is None else prompts.read_prompt(prompt)
    teacher = load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    processors = prompts.make_processors(teacher.tokenizer, json_schema)
    if said is None:
        rows = {"split": split, "skip_bad_rows": skip_bad_rows, "chat_template_config": chat_template_config}
        asked = _row(str(data), idx, teacher, rows)
    else:
        ids = prompts.encode(
            teacher.tokenizer, said, system_prompt=system_prompt, chat_template_config=chat_template_config
        )
        asked = Prompt(ids, 0, "", None)
    own = make_drafter(kind, draft_model, teacher, num_draft_tokens, graph=known, trust_remote_code=trust_remote_code)
    prompts.seed(seed)
    words = Words(teacher.tokenizer)
    screen = None if as_json else Screen(console_for(plain=no_color), nodes=known is not None)
    with report.prefill_bar() as progress:
        responses = stream_generate(
            teacher.model,
            teacher.tokenizer,
            asked.tokens,
            max_tokens=max_tokens,
            graph=None if own else known,
            drafter=own,
            num_draft_tokens=num_draft_tokens,
            sampler=prompts.make_sampler(teacher.tokenizer, temp=temp, top_p=top_p, top_k=top_k),
            logits_processors=processors,
            prompt_progress_callback=progress,
            stop=prompts.read_stops(stop),
        )
        show = _printer(screen, asked, words)
        for record in records(responses, words, asked.tokens[-1], known):
            show(record)


def _row(data: str, idx: int, teacher: Any, rows: dict[str, Any]) -> Prompt:
    """The prompt of one row."""
    from daari_mlx.cli import prompts
    from daari_mlx.text.data import read_prompts

    found = prompts.read_rows(read_prompts, data, teacher, limit=idx + 1, **rows)
    if idx >= len(found):
        raise DaariError(f"--idx is {idx}, and the good rows of {data} end at {len(found) - 1}: give 0 to that.")
    return found[idx]


def _printer(screen: Screen | None, asked: Prompt, words: Any) -> Callable[[dict[str, Any]], None]:
    """What prints each record as it comes; the prompt is told with the first, so that a refusal leaves stdout empty."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # signs that the terminal's encoding lacks are escaped
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
