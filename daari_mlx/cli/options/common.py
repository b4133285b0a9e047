"""The words of the command line: every option once, under mlx-lm's name where mlx-lm has it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.regular import read_text

MAX_TOKENS_GENERATE, MAX_TOKENS_CHAT, MAX_TOKENS_ANSWER = 100, 256, 256  # the first two are mlx-lm's


def parse_draft_length(value: Any) -> int | Literal["auto"]:
    """``"auto"``, or how many tokens to draft, from 0 on."""
    return "auto" if value == "auto" else whole(value, 0, "give a number from 0 on, or auto")


def parse_nodes(value: Any) -> int | Literal["auto"]:
    """``"auto"``, or how many nodes, from 1 on."""
    return "auto" if value == "auto" else whole(value, 1, "give a number from 1 on, or auto")


def parse_max_tokens(value: Any) -> int:
    """At least 1, or -1 for no limit."""
    mend = "give at least 1, or -1 for no limit"
    return -1 if str(value) == "-1" else whole(value, 1, mend)


def parse_truth(value: Any) -> bool:
    """mlx-lm's ``True`` or ``T``, ``False`` or ``F``, in any case."""
    word = str(value).lower()
    if word not in ("true", "t", "false", "f"):
        raise typer.BadParameter(f"{value!r}: give True or False")
    return word.startswith("t")


def parse_template_config(value: Any) -> dict[str, Any]:
    """A JSON object."""
    if isinstance(value, dict):
        return value
    try:
        found = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"it is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f'it should be a JSON object such as {{"enable_thinking": false}}, found {value}')
    return found


def parse_json_schema(value: Any) -> dict[str, Any]:
    """A JSON schema, written out or in a file."""
    if isinstance(value, dict):
        return value
    text, where = str(value), "it"
    if not text.lstrip().startswith("{"):
        where = text
        try:
            text = read_text(text, "JSON schema", instead="Give a JSON object, or a file with one.")
        except DaariError as error:
            raise typer.BadParameter(str(error)) from error
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{where} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise typer.BadParameter(f'{where} should be a JSON object such as {{"type": "object"}}, found {text[:60]}')
    return found


def whole(value: Any, least: int | None, mend: str) -> int:
    """A whole number, from ``least`` on where that is given; ``mend`` tells how else to put it."""
    try:
        number = int(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r}: {mend}") from error
    if least is not None and number < least:
        raise typer.BadParameter(f"{number}: {mend}")
    return number


def refuse_unused(ctx: typer.Context, names: tuple[str, ...], why: str) -> None:
    """Raise a usage error where one of these options was given although nothing would come of it."""
    for param in ctx.command.params:
        source = ctx.get_parameter_source(param.name or "")
        if param.name in names and source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{param.opts[0]} {why}", ctx=ctx)


def check_exists(data: str) -> None:
    """What can be seen of ``--data`` without a tokenizer, so that it is told before a model is loaded.

    Raises:
        DaariError: there is no file or folder at that path.
    """
    from daari_mlx.ground.regular import FOLDER, check_regular, what_is
    from daari_mlx.text.data import DATA_INSTEAD

    if data != "-" and what_is(data) != FOLDER:
        check_regular(data, "data", instead=DATA_INSTEAD)


def number(*names: str, **how: Any) -> Any:
    """An option that takes a number."""
    return typer.Option(*names, metavar="N", **how)


# --- the teacher and its graph
Model = Annotated[
    str,
    typer.Option("--model", metavar="PATH_OR_REPO", help="The teacher: a local model folder or a Hugging Face repo."),
]
MaybeModel = Annotated[
    str | None,
    typer.Option("--model", metavar="PATH_OR_REPO", help="The teacher: a local model folder or a Hugging Face repo."),
]
AdapterPath = Annotated[
    str | None,
    typer.Option("--adapter-path", metavar="FOLDER", help="Trained adapter weights and config of the teacher."),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Trust code that comes with the model and its tokenizer.")
]
MaybeGraph = Annotated[
    str | None,
    typer.Option("--graph", metavar="PATH_OR_REPO", help="The graph that drafts: a folder or USER/REPO[@REVISION]."),
]
NumDraftTokens = Annotated[
    Any,
    typer.Option(
        "--num-draft-tokens",
        parser=parse_draft_length,
        metavar="N|auto",
        help="How many tokens a round drafts; auto decides each round from the graph and this machine's speed.",
    ),
]

# --- extract and compile
Data = Annotated[
    str, typer.Option("--data", metavar="PATH", help="A JSONL file, a folder with train.jsonl etc., or - for stdin.")
]
MaybeData = Annotated[
    str | None,
    typer.Option("--data", metavar="PATH", help="A JSONL file, a folder with train.jsonl etc., or - for stdin."),
]
Workdir = Annotated[
    str, typer.Option("--workdir", metavar="FOLDER", help="Where states are collected; the same command resumes there.")
]
MaybeWorkdir = Annotated[
    str | None,
    typer.Option(
        "--workdir",
        metavar="FOLDER",
        help="A finished extraction; with --model and --data, where to extract to [default: GRAPH_PATH.work, removed "
        "after success].",
    ),
]
GraphPath = Annotated[str, typer.Option("--graph-path", metavar="FOLDER", help="The folder to write the graph to.")]
Answers = Annotated[
    Literal["reference", "teacher"],
    typer.Option("--answers", help="Learn from the answers in the data, or from the teacher's own to its prompts."),
]
AnswerTokens = Annotated[
    int, number("--max-tokens", "-m", min=1, help="The longest answer of the teacher, for --answers teacher.")
]
SkipBadRows = Annotated[
    bool, typer.Option("--skip-bad-rows", help="Leave bad rows out and list them, instead of stopping.")
]
Split = Annotated[str, typer.Option("--split", metavar="NAME", help="Which file of a data folder, without .jsonl.")]
Limit = Annotated[int | None, number("--limit", min=1, help="Take only so many rows.")]
RunSeed = Annotated[
    int, number("--seed", min=0, max=2**32 - 1, help="The same data, seed, versions and threads give the same bytes.")
]
MaxBytes = Annotated[
    int | None, number("--max-bytes", min=1, help="How large the graph may become, whatever the data; 9 MB by default.")
]
NodeCount = Annotated[
    Any,
    typer.Option(
        "--nodes",
        parser=parse_nodes,
        metavar="N|auto",
        help="How many nodes; auto derives it from the number of states.",
    ),
]
ShardModel = Annotated[
    Literal["tensor", "pipeline"] | None,
    typer.Option("--shard-model", help="Under mlx.launch: one teacher over all ranks, by mlx-lm's own sharding."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]

# --- prompts
Prompt = Annotated[
    str,
    typer.Option("--prompt", "-p", metavar="TEXT", help="Message to be processed by the model ('-' reads from stdin)."),
]
SystemPrompt = Annotated[
    str | None, typer.Option("--system-prompt", metavar="TEXT", help="System prompt to be used for the chat template.")
]
PrefillResponse = Annotated[
    str | None,
    typer.Option("--prefill-response", metavar="TEXT", help="How the answer starts; the model goes on from there."),
]
IgnoreChatTemplate = Annotated[
    bool, typer.Option("--ignore-chat-template", help="Use the raw prompt without the tokenizer's chat template.")
]
ChatTemplateConfig = Annotated[
    Any,
    typer.Option(
        "--chat-template-config",
        parser=parse_template_config,
        metavar="JSON",
        help="Further variables for the chat template, as a JSON object.",
    ),
]
JsonSchema = Annotated[
    Any,
    typer.Option(
        "--json-schema",
        parser=parse_json_schema,
        metavar="FILE|JSON",
        help="Hold answers to this JSON schema (needs the extra daari-mlx[grammar]).",
    ),
]
ExtraEos = Annotated[
    list[str] | None,
    typer.Option(
        "--extra-eos-token", metavar="TOKEN", help="A further token that ends the answer; repeat it for several."
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option("--stop", metavar="TEXT", help="End the answer where this text would come; repeat it for several."),
]

# --- decoding
MaxTokens = Annotated[
    Any,
    typer.Option(
        "--max-tokens",
        "-m",
        parser=parse_max_tokens,
        metavar="N",
        help="Maximum number of tokens to generate; -1: no limit.",
    ),
]
Temp = Annotated[float, number("--temp", min=0.0, help="Sampling temperature.")]
TopP = Annotated[float, number("--top-p", min=0.0, max=1.0, help="Sampling top-p.")]
MinP = Annotated[float, number("--min-p", min=0.0, max=1.0, help="Sampling min-p.")]
TopK = Annotated[int, number("--top-k", min=0, help="Sampling top-k; 0: all.")]
MinTokensToKeep = Annotated[
    int, number("--min-tokens-to-keep", min=1, help="Minimum tokens to keep for min-p sampling.")
]
XtcProbability = Annotated[
    float, number("--xtc-probability", min=0.0, max=1.0, help="Probability of XTC sampling to happen each next token.")
]
XtcThreshold = Annotated[
    float, number("--xtc-threshold", min=0.0, max=0.5, help="Probability that a token needs to be taken out by XTC.")
]
MaybeSeed = Annotated[int | None, number("--seed", min=0, max=2**64 - 1, help="Seed of the sampling.")]
MaxKvSize = Annotated[int | None, number("--max-kv-size", min=1, help="The most tokens that the KV cache holds.")]
PrefillStepSize = Annotated[
    int, number("--prefill-step-size", min=1, help="Prompt tokens that one forward takes; smaller saves memory.")
]
KvBits = Annotated[int | None, number("--kv-bits", min=1, help="Bits of KV cache quantisation; none by default.")]
KvGroupSize = Annotated[int, number("--kv-group-size", min=1, help="Group size of KV cache quantisation.")]
QuantizedKvStart = Annotated[
    int, number("--quantized-kv-start", min=0, help="With --kv-bits, the token from which the cache is quantised.")
]
PromptCacheFile = Annotated[
    str | None,
    typer.Option("--prompt-cache-file", metavar="FILE", help="A prompt cache that mlx_lm.cache_prompt saved."),
]
Verbose = Annotated[
    Any,
    typer.Option(
        "--verbose",
        parser=parse_truth,
        metavar="True|False",
        help="Stream the text and print figures, or only the text.",
    ),
]

# --- bench, inspect and probe
Number = Annotated[int, number("-n", min=1, help="How many prompts, from the head of the data.")]
AllowOverlap = Annotated[
    bool, typer.Option("--allow-overlap", help="Take prompts that the graph was compiled from; the record tells.")
]
Out = Annotated[str | None, typer.Option("--out", metavar="FILE", help="Append the whole record as one line of JSON.")]
GraphArgument = Annotated[str, typer.Argument(metavar="GRAPH", help="A graph: a folder or USER/REPO[@REVISION].")]
Top = Annotated[int, number("--top", min=0, help="How many of the busiest nodes to show.")]
Repeats = Annotated[int, number("--repeats", min=1, help="How often each row count is measured.")]
