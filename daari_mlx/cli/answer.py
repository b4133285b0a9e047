"""The commands that answer: generate and chat."""

from __future__ import annotations

import typer

from daari_mlx.cli.options import common as options
from daari_mlx.cli.options import draft as options_draft
from daari_mlx.ground.errors import DaariError
from daari_mlx.show import report


def generate(
    ctx: typer.Context,
    model: options.MaybeModel = None,
    graph: options.MaybeGraph = None,
    draft_model: options_draft.DraftModel = None,
    drafter: options_draft.DrafterKind = None,
    prompt: options.Prompt = "hello",
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    extra_eos_token: options.ExtraEos = None,
    stop: options.Stop = None,
    system_prompt: options.SystemPrompt = None,
    prefill_response: options.PrefillResponse = None,
    max_tokens: options.MaxTokens = options.MAX_TOKENS_GENERATE,
    num_draft_tokens: options.NumDraftTokens = "auto",
    temp: options.Temp = 0.0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    top_k: options.TopK = 0,
    xtc_probability: options.XtcProbability = 0.0,
    xtc_threshold: options.XtcThreshold = 0.1,
    min_tokens_to_keep: options.MinTokensToKeep = 1,
    seed: options.MaybeSeed = None,
    ignore_chat_template: options.IgnoreChatTemplate = False,
    chat_template_config: options.ChatTemplateConfig = None,
    json_schema: options.JsonSchema = None,
    verbose: options.Verbose = True,
    max_kv_size: options.MaxKvSize = None,
    prefill_step_size: options.PrefillStepSize = 2048,
    prompt_cache_file: options.PromptCacheFile = None,
    kv_bits: options.KvBits = None,
    kv_group_size: options.KvGroupSize = 64,
    quantized_kv_start: options.QuantizedKvStart = 5000,
    as_json: options.Json = False,
) -> None:
    """Answer one prompt. As mlx_lm.generate does, with a graph or a cheaper model drafting."""
    if model is None and prompt_cache_file is None:
        raise typer.BadParameter("give --model (or a --prompt-cache-file, which names its model)", ctx=ctx)
    from daari_mlx.cli import prompts
    from daari_mlx.decode.generate import stream_generate
    from daari_mlx.decode.named import GRAPHS, choose_kind, make_drafter
    from daari_mlx.share.find import load_graph
    from daari_mlx.teacher.load import load_teacher

    kind = choose_kind(drafter, graph, draft_model)
    known = load_graph(graph) if graph and kind in GRAPHS else None  # a damaged one is told before the model is loaded
    cache = None
    if prompt_cache_file is not None:
        cache, cached_model = prompts.open_prompt_cache(prompt_cache_file, kv_bits, kv_group_size)
        if model not in (None, cached_model):
            raise DaariError(
                f"{prompt_cache_file} was made with {cached_model}, not with {model}: give that --model, or none."
            )
        model = cached_model
    words = prompts.read_prompt(prompt)
    teacher = load_teacher(str(model), adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    prompts.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
    processors = prompts.make_processors(teacher.tokenizer, json_schema)
    ids = prompts.encode(
        teacher.tokenizer,
        words,
        system_prompt=system_prompt,
        prefill_response=prefill_response,
        ignore_chat_template=ignore_chat_template,
        chat_template_config=chat_template_config,
        cached=cache is not None,
    )
    own = make_drafter(kind, draft_model, teacher, num_draft_tokens, graph=known, trust_remote_code=trust_remote_code)
    prompts.seed(seed)
    with report.prefill_bar() as progress:
        responses = stream_generate(
            teacher.model,
            teacher.tokenizer,
            ids,
            max_tokens=max_tokens,
            graph=None if own else known,
            drafter=own,
            num_draft_tokens=num_draft_tokens,
            prompt_cache=cache,
            max_kv_size=max_kv_size,
            sampler=prompts.make_sampler(
                teacher.tokenizer,
                temp=temp,
                top_p=top_p,
                min_p=min_p,
                min_tokens_to_keep=min_tokens_to_keep,
                top_k=top_k,
                xtc_probability=xtc_probability,
                xtc_threshold=xtc_threshold,
            ),
            logits_processors=processors,
            prefill_step_size=prefill_step_size,
            kv_bits=kv_bits,
            kv_group_size=kv_group_size,
            quantized_kv_start=quantized_kv_start,
            prompt_progress_callback=progress,
            stop=prompts.read_stops(stop),
        )
        report.stream_answer(responses, verbose=verbose, json_too=as_json, drafts=kind != "none")


def chat(
    model: options.Model,
    graph: options.MaybeGraph = None,
    draft_model: options_draft.DraftModel = None,
    drafter: options_draft.DrafterKind = None,
    adapter_path: options.AdapterPath = None,
    trust_remote_code: options.TrustRemoteCode = False,
    extra_eos_token: options.ExtraEos = None,
    stop: options.Stop = None,
    system_prompt: options.SystemPrompt = None,
    max_tokens: options.MaxTokens = options.MAX_TOKENS_CHAT,
    num_draft_tokens: options.NumDraftTokens = "auto",
    temp: options.Temp = 0.0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    top_k: options.TopK = 0,
    xtc_probability: options.XtcProbability = 0.0,
    xtc_threshold: options.XtcThreshold = 0.1,
    min_tokens_to_keep: options.MinTokensToKeep = 1,
    seed: options.MaybeSeed = 0,
    chat_template_config: options.ChatTemplateConfig = None,
    json_schema: options.JsonSchema = None,
    max_kv_size: options.MaxKvSize = None,
    prefill_step_size: options.PrefillStepSize = 2048,
    kv_bits: options.KvBits = None,
    kv_group_size: options.KvGroupSize = 64,
    quantized_kv_start: options.QuantizedKvStart = 5000,
) -> None:
    """Chat in the terminal; /help there lists its commands. A turn reads only its new tokens: the cache keeps the rest.

    What is typed is kept for the next chat in chat_history.jsonl, in the folder that DAARI_MLX_CACHE names
    (~/.cache/daari-mlx), for its owner only. Lines that are piped in are answered one by one.
    """
    from daari_mlx.chat.figures import title
    from daari_mlx.chat.loop import chat as talk
    from daari_mlx.cli import prompts
    from daari_mlx.decode.engine import SpecEngine
    from daari_mlx.decode.named import GRAPHS, choose_kind, make_drafter
    from daari_mlx.share.find import load_graph
    from daari_mlx.teacher.load import load_teacher

    kind = choose_kind(drafter, graph, draft_model)
    known = load_graph(graph) if graph and kind in GRAPHS else None
    teacher = load_teacher(model, adapter_path=adapter_path, trust_remote_code=trust_remote_code)
    prompts.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
    own = make_drafter(kind, draft_model, teacher, num_draft_tokens, graph=known, trust_remote_code=trust_remote_code)
    engine = SpecEngine(
        teacher.model,
        None if own else known,
        drafter=own,
        tokenizer=teacher.tokenizer,
        num_draft_tokens=num_draft_tokens,
        max_kv_size=max_kv_size,
    )
    prompts.seed(seed)
    source = graph if kind in GRAPHS else draft_model
    talk(
        engine,
        system_prompt=system_prompt,
        context_length=teacher.context_length,
        drafter=kind,
        title=title(model, adapter_path, kind, source, teacher.context_length),
        chat_template_config=chat_template_config,
        max_tokens=max_tokens,
        sampler=prompts.make_sampler(
            teacher.tokenizer,
            temp=temp,
            top_p=top_p,
            min_p=min_p,
            min_tokens_to_keep=min_tokens_to_keep,
            top_k=top_k,
            xtc_probability=xtc_probability,
            xtc_threshold=xtc_threshold,
        ),
        logits_processors=prompts.make_processors(teacher.tokenizer, json_schema),
        prefill_step_size=prefill_step_size,
        kv_bits=kv_bits,
        kv_group_size=kv_group_size,
        quantized_kv_start=quantized_kv_start,
        stop=prompts.read_stops(stop),
    )
