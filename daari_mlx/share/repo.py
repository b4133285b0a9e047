"""What names a repository on the Hugging Face Hub, and what an error of the Hub's client means for it."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from daari_mlx.ground.errors import DaariError

_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_REPO = re.compile(rf"(?P<name>{_PART}/{_PART})(?:@(?P<revision>[^\s@]+))?", re.ASCII)
LOG_IN = "log in with 'hf auth login', or set HF_TOKEN"


@dataclass(frozen=True)
class Repo:
    """A repository on the Hub: ``user/name``, at a branch, tag or commit; None is its main branch."""

    name: str
    revision: str | None = None

    def __str__(self) -> str:
        return self.name if self.revision is None else f"{self.name}@{self.revision}"


def parse_repo(text: str) -> Repo | None:
    """``user/name`` or ``user/name@revision``; None for what cannot name a repository."""
    found = _REPO.fullmatch(text)
    if found is None or len(found["name"]) > 96 or "--" in text or ".." in text or found["name"].endswith(".git"):
        return None
    return Repo(found["name"], found["revision"])


class Absent(DaariError):
    """There is no such repository for this user."""


class Unreachable(Absent):
    """The Hub gave no answer that says anything about a repository: offline, not reached, or out of order."""


@contextmanager
def explained(repo: Repo, *, sending: bool = False) -> Iterator[None]:
    """Turn what the Hub's client raises into a :class:`DaariError` that says what to do."""
    from huggingface_hub.errors import HTTPError

    try:
        yield
    except DaariError:
        raise
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        raise _explain(error, repo, sending) from error


def _explain(error: BaseException, repo: Repo, sending: bool) -> DaariError:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    hub = constants.ENDPOINT
    told = f"{type(error).__name__}: {error}".strip(": ")
    for cause in _causes(error):  # the client wraps some errors: the first one that tells something counts
        if isinstance(cause, OfflineModeIsEnabled):
            return Unreachable("HF_HUB_OFFLINE is set, so the Hub is not asked.")
        if isinstance(cause, HfHubHTTPError):
            return _explain_status(cause, repo, sending)
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return DaariError(f"There is no room for {repo} in {constants.HF_HUB_CACHE} ({cause.strerror}): make some.")
        if isinstance(cause, OSError) and cause.errno is not None and cause.filename is not None:
            return DaariError(f"{cause.filename}: {cause.strerror}")
        if "ConnectError" in type(cause).__name__ or "Timeout" in type(cause).__name__:
            return Unreachable(f"The Hub at {hub} cannot be reached ({cause}): try again when it can.")
    if sending:
        return DaariError(f"{repo} could not be sent to the Hub at {hub} ({told}): push again; no part of it is there.")
    return DaariError(
        f"The connection to the Hub at {hub} broke while {repo} was fetched ({told}). "
        "No part of a file was kept: run the same command again."
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _explain_status(error: Any, repo: Repo, sending: bool) -> DaariError:
    """What an HTTP status of the Hub means for a repository."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.errors import GatedRepoError, RevisionNotFoundError

    status, hub = error.response.status_code, constants.ENDPOINT
    if isinstance(error, RevisionNotFoundError):
        return DaariError(f"{repo.name} on the Hub has no revision {repo.revision!r}: give a branch, tag or commit.")
    if isinstance(error, GatedRepoError):
        return DaariError(f"{repo.name} on the Hub is gated: ask for access at {hub}/{repo.name}, then {LOG_IN}.")
    if status in (401, 403) and sending:
        known = "HF_TOKEN or the stored token does not" if get_token() else "nobody is logged in, which does not"
        return DaariError(
            f"The Hub at {hub} refuses the push to {repo.name} ({status}): {known} have the right to write there. "
            f"Give a token with write access ({LOG_IN}), or a repository of your own."
        )
    if status in (401, 403, 404):
        return Absent(
            f"The Hub at {hub} has no repository {repo.name!r} that you may read ({status}). "
            f"Check the name; where it is private, {LOG_IN}."
        )
    if status == 429 or status >= 500:
        words = "asks for fewer requests" if status == 429 else "is out of order"
        return Unreachable(f"The Hub at {hub} {words} just now ({status}): try again in some minutes.")
    return DaariError(
        f"The Hub at {hub} refused a request about {repo.name} ({status}): {error.server_message or error}"
    )
