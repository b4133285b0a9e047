"""What a command is told by name, and the things that the names become: a teacher, rows, a drafter, a schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from daari_mlx.cli.options.values import read_json_schema
from daari_mlx.cli.options.words import ChatTemplateConfig
from daari_mlx.cli.words import VALUES
from daari_mlx.decode.options import DraftLength
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, number, whole
from daari_mlx.ground.regular import FOLDER, what_is
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.draft.drafter import Drafter
    from daari_mlx.graph.graph import Graph
    from daari_mlx.learn.learner import Learner
    from daari_mlx.teacher.load import Teacher
    from daari_mlx.text.data import Rows

R = TypeVar("R")
FEATURES = "prompt_feature completion_feature chat_feature text_feature"  # options that say which field is what
Kind = Literal["graph", "model", "pair", "lookup", "none"]


@dataclass(frozen=True)
class TeacherName:
    """Which teacher."""

    model: Annotated[
        str | None,
        Option("The model that answers (the teacher): a folder or a Hugging Face repository.", "PATH_OR_REPO"),
    ]
    adapter_path: Annotated[str | None, Option("Trained adapter weights and config of the teacher.", "FOLDER")] = None
    trust_remote_code: Annotated[bool, Option("Trust code that comes with the model and its tokenizer.")] = False

    def load(self, *, lazy: bool = False) -> Teacher:
        """The teacher; see :func:`daari_mlx.teacher.load.load_teacher`."""
        from daari_mlx.show.report import while_loading

        with while_loading(str(self.model)):
            from daari_mlx.teacher.load import load_teacher

            return load_teacher(
                str(self.model), adapter_path=self.adapter_path, trust_remote_code=self.trust_remote_code, lazy=lazy
            )


@dataclass(frozen=True)
class RowsName:
    """Which rows of which data."""

    data: Annotated[str | None, Option("A JSONL file, a folder with train.jsonl etc., or - for stdin.", "PATH")]
    split: Annotated[str, Option("Which file of a data folder, without .jsonl.", "NAME")] = "train"
    skip_bad_rows: Annotated[bool, Option("Leave bad rows out and list them, instead of stopping.")] = False
    limit: Annotated[int | None, number("Take only the first N rows.", 1)] = None
    chat_template_config: ChatTemplateConfig = None
    prompt_feature: Annotated[str, Option("The field of a row's prompt, as for mlx_lm.lora.", "FIELD")] = "prompt"
    completion_feature: Annotated[str, Option("The field of the answer to that prompt.", "FIELD")] = "completion"
    chat_feature: Annotated[str, Option("The field of a chat's messages.", "FIELD")] = "messages"
    text_feature: Annotated[str, Option("The field of a text.", "FIELD")] = "text"

    def check(self) -> None:
        """Look for the data without a tokenizer, so that its lack is told before a model is loaded.

        Raises:
            DaariError: see :func:`daari_mlx.text.lines.check_data`.
        """
        from daari_mlx.text.lines import check_data

        check_data(str(self.data), self.split)

    def read(self, read: Callable[..., Rows[R]], teacher: Teacher, limit: int | None = None) -> list[R]:
        """The rows that fit the teacher; a note tells of those that were skipped.

        Args:
            read: ``read_prompts`` or ``read_sequences``, whose errors these are.
            limit: the most rows, in place of the option.
        """
        from daari_mlx.text.rows import Features

        rows = read(
            str(self.data),
            teacher.tokenizer,
            split=self.split,
            skip_bad_rows=self.skip_bad_rows,
            max_length=teacher.context_length,
            limit=limit or self.limit,
            chat_template_config=self.chat_template_config,
            features=Features(self.prompt_feature, self.completion_feature, self.chat_feature, self.text_feature),
        )
        for note in rows.notes():
            report.note(f"note: {note}")
        return rows.items


@dataclass(frozen=True)
class Drafting:
    """Who drafts, as things.

    Attributes:
        graph: what was compiled for the teacher, or None.
        drafter: any other drafter; one that uses the graph too is given with it.
        num_draft_tokens: see :func:`daari_mlx.stream_generate`.
    """

    graph: Graph | None
    drafter: Drafter | None
    num_draft_tokens: DraftLength

    def options(self) -> dict[str, Any]:
        """The options of :func:`daari_mlx.stream_generate`, which takes a graph or another drafter."""
        return {**vars(self), "graph": None if self.drafter else self.graph}

    def learning(self, learner: Learner | None) -> dict[str, Any]:
        """The same where somebody may learn, who then has the graph."""
        return self.options() if learner is None else {**self.options(), "graph": None, "learn": learner}


@dataclass(frozen=True)
class DrafterName:
    """Who drafts: the graph, a cheaper model, both as a pair, prompt lookup, or nobody."""

    graph: Annotated[str | None, Option("The graph that drafts: a folder or USER/REPO[@REVISION].", "PATH_OR_REPO")] = (
        None
    )
    draft_model: Annotated[
        str | None,
        Option(
            "A cheaper model with the teacher's tokenizer that drafts: one of its family, or a tier.", "PATH_OR_REPO"
        ),
    ] = None
    drafter: Annotated[
        Kind | None,
        Option(
            "Who drafts: the graph, the draft model, both as a pair, look-ups in the text itself, or nobody.",
            shown="what is given",
        ),
    ] = None
    num_draft_tokens: Annotated[
        DraftLength,
        Option(
            "How many tokens to draft at a time; auto decides each time from the graph and this machine's speed.",
            "N|auto",
            read=whole(0, "give a number from 0 on, or auto", "auto"),
        ),
    ] = "auto"

    def kind(self) -> Kind:
        """The drafter that is meant; what is only given and not used is refused, never dropped silently.

        Raises:
            DaariError: something is missing, or given for nothing.
        """
        given: dict[Kind, str | None] = {"graph": self.graph, "model": self.draft_model}
        options: dict[Kind, str] = {"graph": "--graph", "model": "--draft-model"}
        named: list[Kind] = [name for name, value in given.items() if value is not None]
        if self.drafter is None:
            return "pair" if len(named) > 1 else named[0] if named else "none"
        needed = list(given) if self.drafter == "pair" else [self.drafter] if self.drafter in given else []
        if missing := [options[name] for name in needed if given[name] is None]:
            raise DaariError(f"--drafter {self.drafter} needs {' and '.join(missing)}.")
        if unused := [options[name] for name in named if name not in needed and self.drafter != "none"]:
            raise DaariError(
                f"{' and '.join(unused)} is given, but --drafter {self.drafter} does not use it: leave it out."
            )
        return self.drafter

    def load_graph(self) -> Graph | None:
        """The graph, where it is used; first, so that what is wrong with names is told before the teacher is loaded."""
        from daari_mlx.share.find import load_graph
        from daari_mlx.teacher.load import check_model

        used = self.kind() in ("graph", "pair")
        if self.draft_model is not None:
            check_model(self.draft_model)
        return load_graph(str(self.graph)) if used else None

    def load(self, graph: Graph | None, teacher: Teacher, *, trust_remote_code: bool) -> Drafting:
        """Who drafts for a teacher.

        Args:
            graph: as :meth:`load_graph` gave it.
            teacher: who verifies.
            trust_remote_code: of the draft model.

        Raises:
            DaariError: see :func:`daari_mlx.draft.model.model_drafter`; a graph of another teacher, for a pair.
        """
        from daari_mlx.decode.choose import lookup_drafter, pair_drafter
        from daari_mlx.draft.model import model_drafter
        from daari_mlx.graph.artifact import attach

        kind = self.kind()
        length = 0 if self.drafter == "none" else self.num_draft_tokens  # nobody, the schema included
        drafter: Drafter | None = None
        if kind in ("model", "pair"):
            if graph is not None:
                graph = attach(graph, teacher.model, teacher.tokenizer)
            small = TeacherName(self.draft_model, trust_remote_code=trust_remote_code)
            model = model_drafter(small.load(), teacher, length)
            drafter = model if graph is None else pair_drafter(graph, model, teacher, length)
        elif kind == "lookup":
            drafter = lookup_drafter(teacher, length)
        return Drafting(graph, drafter, length)


@dataclass(frozen=True)
class LearnName:
    """Whether answers are learnt from, and where that is kept."""

    learn: Annotated[
        str | None,
        Option(
            "Learn from every answer and draft from that; with a folder, what was learnt is kept there as a graph.",
            "[GRAPH_PATH]",
        ),
    ] = None

    @property
    def path(self) -> str | None:
        """Where what is learnt is kept; None where it is not, or nothing is learnt."""
        return None if self.learn == VALUES["--learn"] else self.learn

    def check(self, drafter_name: DrafterName) -> None:
        """See, before a model is loaded, that a graph and what it is made of can be kept at the path.

        Raises:
            DaariError: something else stands there, or what is no log; another process learns there; another drafter
                was chosen besides.
        """
        if self.learn is not None and drafter_name.kind() in ("model", "pair", "lookup"):
            raise DaariError("--learn drafts what it learns, alone or with a --graph: leave the other drafter out.")
        if self.path is None:
            return
        from daari_mlx.graph.artifact import check_target
        from daari_mlx.ground.learning import learnt_folder
        from daari_mlx.learn.kept import kept_at

        check_target(self.path, option="--learn")
        beside = learnt_folder(self.path)
        if (found := what_is(beside)) not in (None, FOLDER):
            raise DaariError(f"{beside} is {found}, and what is learnt lies there: name another path for --learn.")
        kept_at(self.path)

    def load(self, drafting: Drafting, teacher: Teacher) -> Learner | None:
        """Who learns, beginning with the graph that drafts; None where nobody does.

        Raises:
            DaariError: see :func:`daari_mlx.learn.start.learner_for`.
        """
        if self.learn is None:
            return None
        from daari_mlx.learn.start import learner_for

        return learner_for(
            teacher.model, teacher.tokenizer, graph=drafting.graph, path=self.path, about=teacher.fingerprint()
        )

    def named(self, graph: str | None) -> str:
        """What a person calls the graph that drafts: what it began with, and where what it learns is kept."""
        where = "" if self.learn == VALUES["--learn"] else f", kept in {Path(str(self.learn)).resolve().name}"
        if graph is not None and Path(graph).is_dir():  # else it is a repository, which keeps its user's name
            graph = Path(graph).resolve().name
        return f"{graph} and what it learns{where}" if graph else f"what it learns{where}"


@dataclass(frozen=True)
class SchemaName:
    """Which schema answers are held to."""

    json_schema: Annotated[
        dict[str, Any] | None,
        Option(
            "Keep answers, but for a think block, within this JSON schema (needs the extra daari-mlx[grammar]).",
            "FILE|JSON",
            read=read_json_schema,
        ),
    ] = None
    json_whitespace: Annotated[
        Literal["compact", "spaced", "any"] | None,
        Option(
            "White space under --json-schema: none, one space behind each comma and colon, or the teacher's own.",
            shown="compact",
        ),
    ] = None

    def check(self) -> None:
        """See that what is given goes together.

        Raises:
            DaariError: white space was chosen for no schema.
        """
        if self.json_schema is None and self.json_whitespace is not None:
            raise DaariError("--json-whitespace goes with --json-schema: give both, or none.")

    def load(self, tokenizer: Any) -> list[Any] | None:
        """The logits processors that hold answers to it; None without a schema.

        Raises:
            DaariError: white space was chosen for no schema; see
                :func:`daari_mlx.decode.grammar.json_schema_processor`.
        """
        self.check()
        if self.json_schema is None:
            return None
        from daari_mlx.decode.grammar import json_schema_processor

        return [json_schema_processor(tokenizer, self.json_schema, self.json_whitespace or "compact")]
