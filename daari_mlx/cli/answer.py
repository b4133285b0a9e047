"""The commands that answer: generate and chat."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

import typer

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.cli.options.names import DrafterName, LearnName, SchemaName, TeacherName
from daari_mlx.cli.options.values import read_truth
from daari_mlx.decode.options import CacheOptions, Length, Sampling
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option
from daari_mlx.show import report

Prompt = Annotated[
    str, Option("Message to be processed by the model ('-' reads from stdin).", "TEXT", ("--prompt", "-p"))
]
Verbose = Annotated[bool, Option("Stream the text and print figures, or only the text.", "True|False", read=read_truth)]


@takes(
    "model graph learn draft_model drafter prompt adapter_path trust_remote_code extra_eos_token stop system_prompt "
    "prefill_response max_tokens num_draft_tokens sampling ignore_chat_template chat_template_config json_schema "
    "json_whitespace verbose max_kv_size prefill_step_size prompt_cache_file kv_bits kv_group_size quantized_kv_start "
    "as_json",
    model=None,
    max_tokens=100,  # mlx-lm's
)
def generate(
    ctx: typer.Context,
    teacher_name: TeacherName,
    drafter_name: DrafterName,
    learn_name: LearnName,
    length: Length,
    sampling: Sampling,
    cache: CacheOptions,
    schema_name: SchemaName,
    prompt: Prompt = "hello",
    extra_eos_token: words.ExtraEos = None,
    system_prompt: words.SystemPrompt = None,
    prefill_response: Annotated[
        str | None, Option("How the answer starts; the model goes on from there.", "TEXT")
    ] = None,
    ignore_chat_template: Annotated[bool, Option("Use the raw prompt without the tokenizer's chat template.")] = False,
    chat_template_config: words.ChatTemplateConfig = None,
    verbose: Verbose = True,
    prompt_cache_file: Annotated[str | None, Option("A prompt cache that mlx_lm.cache_prompt saved.", "FILE")] = None,
    as_json: words.Json = False,
) -> None:
    """Answer one prompt. As mlx_lm.generate does, with a graph or a cheaper model drafting."""
    if teacher_name.model is None and prompt_cache_file is None:
        raise typer.BadParameter("give --model (or a --prompt-cache-file, which names its model)", ctx=ctx)
    from daari_mlx.cli import prompts
    from daari_mlx.cli.prompt_cache import open_prompt_cache
    from daari_mlx.decode.generate import stream_generate
    from daari_mlx.show.learnt import learning

    learn_name.check(drafter_name)
    graph = drafter_name.load_graph()
    saved = None
    if prompt_cache_file is not None:
        saved, model = open_prompt_cache(prompt_cache_file, cache.kv_bits, cache.kv_group_size)
        if teacher_name.model not in (None, model):
            raise DaariError(
                f"{prompt_cache_file} was made with {model}, not with {teacher_name.model}: give that --model, or none."
            )
        teacher_name = replace(teacher_name, model=model)
    text = prompts.read_prompt(prompt)
    teacher = teacher_name.load()
    words.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
    processors = schema_name.load(teacher.tokenizer)
    ids = prompts.encode(
        teacher.tokenizer,
        text,
        system_prompt=system_prompt,
        prefill_response=prefill_response,
        ignore_chat_template=ignore_chat_template,
        chat_template_config=chat_template_config,
        cached=saved is not None,
    )
    drafting = drafter_name.load(graph, teacher, trust_remote_code=teacher_name.trust_remote_code)
    learner = learn_name.load(drafting, teacher)
    drafts = learner is not None or drafter_name.kind() != "none"
    sampling.start()
    with learning(learner), report.prefill_bar() as progress:
        responses = stream_generate(
            teacher.model,
            teacher.tokenizer,
            ids,
            prompt_cache=saved,
            sampler=sampling.sampler(teacher.tokenizer),
            logits_processors=processors,
            prompt_progress_callback=progress,
            begun=prefill_response or "",
            **drafting.learning(learner),
            **asdict(length),
            **asdict(cache),
        )
        report.stream_answer(responses, verbose=verbose, json_too=as_json, drafts=drafts)


@takes(
    "model graph learn draft_model drafter adapter_path trust_remote_code extra_eos_token stop system_prompt "
    "max_tokens num_draft_tokens sampling chat_template_config json_schema json_whitespace cache",
    seed=0,
)
def chat(
    teacher_name: TeacherName,
    drafter_name: DrafterName,
    learn_name: LearnName,
    length: Length,
    sampling: Sampling,
    cache: CacheOptions,
    schema_name: SchemaName,
    extra_eos_token: words.ExtraEos = None,
    system_prompt: words.SystemPrompt = None,
    chat_template_config: words.ChatTemplateConfig = None,
) -> None:
    """Chat in the terminal; /help there lists its commands. A turn reads only its new tokens: the cache keeps the rest.

    What is typed is kept for the next chat in chat_history.jsonl, in the folder that DAARI_MLX_CACHE names
    (~/.cache/daari-mlx), for its owner only. Lines that are piped in are answered one by one.
    """
    from daari_mlx.chat.figures import title
    from daari_mlx.chat.loop import chat as talk
    from daari_mlx.decode.engine import SpecEngine
    from daari_mlx.show.learnt import learning

    learn_name.check(drafter_name)
    graph = drafter_name.load_graph()
    teacher = teacher_name.load()
    words.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
    drafting = drafter_name.load(graph, teacher, trust_remote_code=teacher_name.trust_remote_code)
    learner = learn_name.load(drafting, teacher)
    engine = SpecEngine(
        teacher.model, tokenizer=teacher.tokenizer, max_kv_size=cache.max_kv_size, **drafting.learning(learner)
    )
    kind, named = drafter_name.kind(), drafter_name.graph or drafter_name.draft_model
    if learner is not None:
        kind, named = "graph", learn_name.named(named)
    sampling.start()
    with learning(learner, learn_name.path):
        talk(
            engine,
            system_prompt=system_prompt,
            context_length=teacher.context_length,
            drafter=kind,
            title=title(teacher.source, teacher.adapter_path, kind, named, teacher.context_length),
            chat_template_config=chat_template_config,
            sampler=sampling.sampler(teacher.tokenizer),
            logits_processors=schema_name.load(teacher.tokenizer),
            **asdict(length),
            **cache.filling(),
        )
