"""How a server is reached, and its limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.option import Option, number
from daari_mlx.ground.regular import FOLDER, what_is

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def size(value: Any) -> int:
    """Bytes from a number with a unit, as mlx_lm.server reads it: ``4GB``, ``512MiB``."""
    text = str(value).strip().upper()
    digits = text.rstrip("BKMGI ")
    unit = text[len(digits) :].strip()
    try:
        found = float(digits) * UNITS[unit if unit.endswith("B") or not unit else unit + "B"]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{value!r}: give bytes, or a size such as 4GB") from error
    if found < 0:
        raise ValueError(f"{value!r}: give a size from 0 on")
    return int(found)


def _eighth() -> int:
    """An eighth of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8


@dataclass(frozen=True)
class ServeOptions:
    """The options of a server."""

    host: Annotated[str, Option("The address to listen on; the default is this machine only.", "HOST")] = "127.0.0.1"
    port: Annotated[int, number("The port; 0 takes a free one.", 0, 65535)] = 8080
    api_key: Annotated[
        list[str] | None,
        Option(
            "A key that clients have to send, as is DAARI_API_KEY. Repeat it for more, each with caches of its own.",
            "KEY",
        ),
    ] = None
    allowed_origins: Annotated[
        str | None,
        Option("Web pages that may ask, separated by commas; * for all.", "ORIGINS", shown="pages of this machine"),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        Option("A further name that clients may call the model by; repeat it for several.", "NAME"),
    ] = None
    max_tokens: Annotated[
        int | None,
        number("The longest answer where the client does not say; by default up to the end of the context.", 1),
    ] = None
    decode_concurrency: Annotated[int, number("How many answers may be under way at once.", 1, 256)] = 32
    prefill_step_size: Annotated[
        int, number("How many tokens of new prompts are read before answers under way go on.", 1)
    ] = 512
    queue_limit: Annotated[int, number("How many answers may wait for a place; more get status 429.", 0)] = 256
    max_body_bytes: Annotated[int, Option("The largest request that is taken.", "SIZE", read=size, shown="16MB")] = (
        16_000_000
    )
    timeout: Annotated[
        float | None, number("Seconds that a request may take; without it there is no limit.", 0.001, 604_800)
    ] = None
    prompt_cache_size: Annotated[
        int, number("How many conversations are kept in memory for their next turn; 0 for none.", 0)
    ] = 64
    prompt_cache_bytes: Annotated[
        int | None,
        Option("The most memory for kept conversations.", "SIZE", read=size, shown="an eighth of the memory"),
    ] = None
    prompt_cache_dir: Annotated[
        str | None, Option("A folder that keeps conversations over restarts of the server.", "FOLDER")
    ] = None
    show_prompts: Annotated[bool, Option("List the beginning of each prompt at /daari/requests.")] = False

    def check(self) -> None:
        """See, before a model is loaded, that there can be a folder for caches.

        Raises:
            DaariError: something else stands there.
        """
        folder = self.prompt_cache_dir
        if folder is not None and (found := what_is(folder)) not in (None, FOLDER):
            raise DaariError(f"{folder} is {found}: name a folder for --prompt-cache-dir.")

    @property
    def keys(self) -> list[str]:
        """All keys that let somebody in; none where nobody has to have one."""
        return [*(self.api_key or []), *filter(None, [os.environ.get("DAARI_API_KEY")])]

    @property
    def cache_bytes(self) -> int:
        """What kept caches may take."""
        return _eighth() if self.prompt_cache_bytes is None else self.prompt_cache_bytes
