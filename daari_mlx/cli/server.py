"""The command that answers other programs: server."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

from daari_mlx.cli.options import words
from daari_mlx.cli.options.command import takes
from daari_mlx.cli.options.names import DrafterName, SchemaName, TeacherName
from daari_mlx.decode.options import Sampling
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option
from daari_mlx.serve.options import ServeOptions

LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"], Option("How much is logged to stderr.")]


@takes(
    "model graph num_draft_tokens adapter_path trust_remote_code extra_eos_token options temp top_p top_k min_p "
    "chat_template_config json_whitespace log_level",
)
def server(
    teacher_name: TeacherName,
    drafter_name: DrafterName,
    options: ServeOptions,
    sampling: Sampling,
    schema_name: SchemaName,
    extra_eos_token: words.ExtraEos = None,
    chat_template_config: words.ChatTemplateConfig = None,
    log_level: LogLevel = "INFO",
) -> None:
    """Answer other programs by OpenAI's and Anthropic's APIs. Several at once share forwards, with a graph drafting.

    Nothing is loaded or fetched by a client's word, and nobody but this machine is answered unless --host says so.
    """
    try:
        from daari_mlx.serve.run import listen, make_service, serve
    except ImportError as error:
        if error.name not in ("starlette", "uvicorn", "pydantic"):
            raise
        raise DaariError(
            f"The server needs {error.name}, which is not installed: pip install 'daari-mlx[server]'"
        ) from error
    logging.basicConfig(level=log_level, format="%(asctime)s - %(levelname)s - %(message)s")
    graph = drafter_name.load_graph()
    sock = listen(options)  # a port that is taken is told before a model is loaded
    teacher = teacher_name.load()
    words.add_eos_tokens(teacher.tokenizer, extra_eos_token or [])
    service = make_service(
        teacher,
        graph,
        options,
        num_draft_tokens=drafter_name.num_draft_tokens,
        sampling=sampling,
        chat_template_config=chat_template_config,
        whitespace=schema_name.json_whitespace or "compact",
    )
    length = drafter_name.num_draft_tokens
    serve(service, sock, log_level.lower(), load_graph=drafter_name.load_graph, num_draft_tokens=length)
