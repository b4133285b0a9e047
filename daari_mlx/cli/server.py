"""The command that answers other programs: server."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Literal

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.cli.options.names import DrafterName, LearnName, SchemaName, TeacherName
from daari_mlx.cli.words import VALUES
from daari_mlx.decode.options import Sampling
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option
from daari_mlx.serve.options import ServeOptions
from daari_mlx.show import report

if TYPE_CHECKING:
    from daari_mlx.graph.graph import Graph
    from daari_mlx.learn.scopes import Learners
    from daari_mlx.teacher.load import Teacher

ShareLearning = Annotated[
    bool, Option("Let all clients share what is learnt; how fast an answer comes then tells of what others were told.")
]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], Option("How much is logged to stderr.")]


@takes(
    "model graph learn share_learning num_draft_tokens adapter_path trust_remote_code extra_eos_token options temp "
    "top_p top_k min_p chat_template_config json_whitespace log_level",
)
def server(
    teacher_name: TeacherName,
    drafter_name: DrafterName,
    learn_name: LearnName,
    options: ServeOptions,
    sampling: Sampling,
    schema_name: SchemaName,
    extra_eos_token: words.ExtraEos = None,
    chat_template_config: words.ChatTemplateConfig = None,
    log_level: LogLevel = "INFO",
    share_learning: ShareLearning = False,
) -> None:
    """Answer other programs, with OpenAI's and Anthropic's APIs. Several at once, with a graph drafting.

    No request can make it load or fetch anything, and only this machine is answered unless --host says otherwise.
    """
    try:
        from daari_mlx.serve.run import listen, make_service, serve
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn", "pydantic"):
            raise
        raise DaariError(
            f"The server needs {error.name}, which is not installed: pip install '.[server]' in a clone of the project"
        ) from error
    from daari_mlx.show.learnt import begins_text, ends_text

    logging.basicConfig(level=log_level, format="%(asctime)s - %(levelname)s - %(message)s")
    learn_name.check(drafter_name)
    graph = drafter_name.load_graph()
    options.check()
    _check_learning(learn_name, options, share_learning)
    sock = listen(options)  # a port that is taken is told before a model is loaded
    teacher = teacher_name.load()
    words.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
    learners = _learners(learn_name, drafter_name, options, share_learning, graph, teacher)
    length = drafter_name.num_draft_tokens
    service = make_service(
        teacher,
        graph,
        options,
        num_draft_tokens=length,
        sampling=sampling,
        chat_template_config=chat_template_config,
        whitespace=schema_name.json_whitespace or "compact",
        learners=learners,
    )
    load_graph = drafter_name.load_graph if learners is None else None
    if learners is not None and learn_name.path is not None:
        report.note(begins_text(learners.any, learn_name.path))
    try:
        serve(service, sock, log_level.lower(), load_graph=load_graph, num_draft_tokens=length)
    finally:
        if learners is not None:
            learners.close()
            if learners.any.trouble is not None:
                report.note(f"note: not all that was learnt is kept: {learners.any.trouble}")
            if learn_name.path is not None:
                report.note(ends_text(learn_name.path))


def _check_learning(learn_name: LearnName, options: ServeOptions, shared: bool) -> None:
    if shared and learn_name.learn is None:
        raise DaariError("--share-learning goes with --learn: give both, or none.")
    alone = learn_name.learn == VALUES["--learn"] and options.keys
    if learn_name.learn is not None and not shared and not alone:
        raise DaariError(
            "--learn has to know which clients may share what is learnt. Give --share-learning too if all may (then it "
            "can be kept in a folder), or else an --api-key for each client and --learn without a folder."
        )


def _learners(
    learn_name: LearnName,
    drafter_name: DrafterName,
    options: ServeOptions,
    shared: bool,
    graph: Graph | None,
    teacher: Teacher,
) -> Learners | None:
    """Who learns: one for all clients where they may share, else one for each key."""
    from daari_mlx.learn.scopes import Apart, Together
    from daari_mlx.learn.start import learner_for

    if learn_name.learn is None:
        return None
    if shared:
        learner = learn_name.load(drafter_name.load(graph, teacher, trust_remote_code=False), teacher)
        return None if learner is None else Together(learner)
    return Apart(lambda: learner_for(teacher.model, teacher.tokenizer, graph=graph))
