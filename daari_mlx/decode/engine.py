"""`SpecEngine`: a teacher, its graph, and one prompt cache that is kept from answer to answer."""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import mlx.nn as nn
from mlx_lm.utils import common_prefix_len

from daari_mlx.decode.choose import NoDrafter, graph_drafter, learning_drafter
from daari_mlx.decode.generate import new_cache, stream_generate
from daari_mlx.decode.options import DraftLength
from daari_mlx.decode.refusals import refuse_two_drafters
from daari_mlx.decode.responses import GenerationResponse
from daari_mlx.draft.drafter import Drafter
from daari_mlx.graph.artifact import attach
from daari_mlx.graph.graph import Graph
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.given import check_draft_length
from daari_mlx.learn.drafter import LearningDrafter
from daari_mlx.learn.learner import Learner
from daari_mlx.learn.start import check_teacher, learner_for
from daari_mlx.share.find import graph_of
from daari_mlx.teacher.fingerprint import differences, fingerprint, fingerprint_tokenizer
from daari_mlx.teacher.kept import stamp
from daari_mlx.teacher.load import check_model_files, load_teacher
from daari_mlx.teacher.quirks import refuses_blocks
from daari_mlx.teacher.rewind import drop_last
from daari_mlx.text.prompt import Prompt, token_ids
from daari_mlx.text.template import ChatTemplate

Messages = list[dict[str, Any]]


class SpecEngine:
    """Answers chats with a teacher and its graph.

    The prompt cache is kept: what a new chat shares with the last one (the system prompt, all earlier turns) is not
    computed again. One engine serves one answer at a time.

    Model and tokenizer may be changed between two answers (an adapter switched off, other weights): the cache is then
    begun anew, and where they are no longer what the graph was compiled from, answers are decoded plainly, with the
    reason in ``drafting_off``, until they are again.

    Args:
        model: a loaded model, or a folder or Hub repository to load.
        graph: a compiled graph, or its folder or Hub repository; None decodes plainly.
        drafter: any other drafter, in place of a graph. Drafters keep what they know from answer to answer; the
            graph's remembers what was said, within bounds.
        tokenizer: of a loaded model; None takes it from where the graph says its teacher came from.
        adapter_path: of a model given by name.
        num_draft_tokens: see :func:`daari_mlx.stream_generate`.
        max_kv_size: mlx-lm's.
        learn: learn from every answer, beginning with ``graph`` or with nothing, and draft what was learnt; a learner
            goes on with what it knows. Other engines of the same teacher may share it.

    Raises:
        DaariError: nothing to load there, or a graph of another teacher.
    """

    def __init__(
        self,
        model: nn.Module | str | Path,
        graph: Graph | str | Path | None = None,
        *,
        drafter: Drafter | None = None,
        tokenizer: Any = None,
        adapter_path: str | None = None,
        num_draft_tokens: DraftLength = "auto",
        max_kv_size: int | None = None,
        learn: Learner | bool = False,
    ) -> None:
        refuse_two_drafters(graph, drafter)
        if learn and drafter is not None:
            raise DaariError("drafter and learn were both given, but a learner drafts itself: give one of them.")
        check_draft_length(num_draft_tokens)
        known = None if graph is None else graph_of(graph)
        if isinstance(model, (str, Path)):
            teacher = load_teacher(str(model), adapter_path=adapter_path)
            model, tokenizer = teacher.model, tokenizer or teacher.tokenizer
        self.model = model
        self.tokenizer = tokenizer or _tokenizer_of(known)
        self.graph = None if known is None else attach(known, model, self.tokenizer)
        self.learner = learn if isinstance(learn, Learner) else None
        if learn is True:
            self.learner = learner_for(model, self.tokenizer, graph=self.graph)
        if self.learner is not None:
            check_teacher(self.learner, model, self.tokenizer)
            self.graph = self.learner.base
        self.num_draft_tokens = num_draft_tokens
        self.max_kv_size = max_kv_size
        self.drafter = drafter
        self._state: Any = None  # that of model and tokenizer for which all of this was made
        self._renew()  # T(m) is measured now where it is not known yet, not within the first answer

    def reset(self) -> None:
        """Forget the conversation: the next prompt is prefilled from its start."""
        self.cache = new_cache(self.model, self.max_kv_size)
        self.cached: list[int] | None = []  # the tokens it holds; None while an answer is under way

    def _renew(self) -> None:
        """Begin anew where model or tokenizer changed since the last answer."""
        tokens = None
        if self.graph is not None:  # the cache needs nothing of a tokenizer, drafts do
            tokens = fingerprint_tokenizer(self.tokenizer), frozenset(getattr(self.tokenizer, "eos_token_ids", ()))
        state = stamp(self.model), tokens
        if state == self._state:
            return
        self._state = state
        self.reset()
        if self.graph is None:
            return
        if found := differences(self.graph.teacher, fingerprint(self.model, self.tokenizer)):
            self.drafter = NoDrafter(
                f"the graph belongs to another teacher by now (they differ in: {', '.join(found)})"
            )
        elif self.num_draft_tokens and refuses_blocks(self.model) is None:
            if self.learner is not None:
                self.drafter = learning_drafter(self.learner, self.model, self.tokenizer, self.num_draft_tokens)
                return
            self.drafter = graph_drafter(self.graph, self.model, self.tokenizer, self.num_draft_tokens)
        else:
            self.drafter = None

    def generate_chat(self, messages: Messages, **options: Any) -> tuple[str, dict[str, Any]]:
        """Answer a chat.

        Args:
            messages: ``[{"role": ..., "content": ...}, ...]``; the answer to the last one is given.
            options: those of :meth:`stream_chat`.

        Returns:
            The answer's text, and ``{"tokens", "forwards", "tokens_per_forward", "acceptance_rate", ...}``: emitted
            tokens, teacher forwards after prefill, and what drafting did (:class:`daari_mlx.ground.accept.Statistics`).
        """
        text, last = "", None
        for last in self.stream_chat(messages, **options):
            text += last.text
        if last is None:
            raise DaariError("The teacher gave no token.")
        stats = {
            **last.statistics.as_dict(),
            "prompt_tokens": last.prompt_tokens,
            "finish_reason": last.finish_reason,
        }
        return text, stats

    def stream_chat(
        self,
        messages: Messages,
        *,
        tools: list[dict[str, Any]] | None = None,
        chat_template_config: dict[str, Any] | None = None,
        **options: Any,
    ) -> Generator[GenerationResponse, None, None]:
        """Stream the answer to a chat; ``prompt_tokens`` in the responses counts only what had to be prefilled.

        Args:
            messages: as for :meth:`generate_chat`.
            tools: function descriptions for the chat template: a list, or JSON text of one.
            chat_template_config: further variables for the chat template.
            options: those of :func:`daari_mlx.stream_generate` but graph, cache, its size, and draft length.

        Raises:
            DaariError: the template rejects the messages, they are malformed (see
                :func:`daari_mlx.text.messages.read_messages`), ``chat_template_config`` has names that are no variables
                of a template; what :meth:`stream_tokens` raises.
        """
        template = ChatTemplate(self.tokenizer, chat_template_config)
        return self.stream_tokens(template.prompt_ids(messages, tools), **options)

    def stream_tokens(self, ids: Prompt, **options: Any) -> Generator[GenerationResponse, None, None]:
        """Stream the answer to token ids; what the cache already holds of them is not computed again.

        Args:
            ids: a list, or an array of integers (NumPy's, MLX's) of one dimension.
            options: see :meth:`stream_chat`.

        Raises:
            DaariError: an option that belongs to the engine, or one that :func:`daari_mlx.stream_generate` refuses.
        """
        if own := sorted(
            {"graph", "drafter", "num_draft_tokens", "prompt_cache", "earlier", "max_kv_size", "learn"} & set(options)
        ):
            raise DaariError(
                f"{' and '.join(own)} cannot be given for one answer: they are the engine's; what can be chosen is "
                "given to SpecEngine(...)."
            )
        ids = token_ids(ids)
        self._renew()
        if self.cached is None:
            self.reset()  # the answer before was neither finished nor closed: its cache stays its own
        known = self.cached or []
        shared = max(0, min(common_prefix_len(known, ids), len(ids) - 1))
        if shared < len(known) and not drop_last(self.cache, len(known) - shared):
            self.reset()
            shared = 0
        cache, self.cached = self.cache, None
        emitted: list[int] = []
        responses = stream_generate(
            self.model,
            self.tokenizer,
            ids[shared:],
            graph=self.graph if self.drafter is None else None,
            drafter=self.drafter,
            num_draft_tokens=self.num_draft_tokens,
            prompt_cache=cache,
            earlier=ids[:shared],
            learn=self.learner if isinstance(self.drafter, LearningDrafter) else None,
            **options,
        )
        try:
            for response in responses:
                emitted.append(response.token)
                yield response
        finally:
            responses.close()
            if self.cache is cache:
                if emitted:
                    self.cached = [*ids, *emitted[:-1]]
                else:
                    self.reset()  # prefill did not end: nobody knows how far it came


def _tokenizer_of(graph: Graph | None) -> Any:
    """The tokenizer that the graph's teacher was loaded with."""
    source = graph.teacher.get("source") if graph is not None else None
    if not isinstance(source, str) or not os.path.isdir(source):  # Path.is_dir raises where a name is too long
        raise DaariError(
            "SpecEngine was given a loaded model without its tokenizer: give tokenizer=... as mlx_lm.load returned it."
        )
    from mlx_lm.utils import load_tokenizer

    check_model_files(source)
    return load_tokenizer(Path(source))
