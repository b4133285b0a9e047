"""The Hugging Face Hub: some files of a repository come as a folder (`pull`), and go as one commit (`push`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.share.repo import Repo, Unreachable, explained

_COMMIT = re.compile(r"[0-9a-f]{40}")
SECONDS = 30  # that the Hub may take to say what a repository holds

_log = logging.getLogger(__name__)
_fetched: dict[tuple[Repo, str], Path] = {}  # by repository and cache: the Hub is asked once a process


def fetch(repo: Repo, limits: Mapping[str, int], needed: tuple[str, ...]) -> Path:
    """The folder, in the Hub's own cache, with some files of a repository; nothing else of it is fetched.

    What is in the cache is not fetched again. Where the Hub cannot be reached, the cache alone answers. A process asks
    the Hub about a repository once.

    Args:
        limits: the names of the files, and the most bytes that each may have: more is not downloaded.
        needed: those of them that the repository must have.

    Raises:
        DaariError: there is no such repository or revision, it lacks a needed file or has one that is too large; the
            Hub refuses, cannot be reached, or the connection broke.
    """
    from huggingface_hub import constants

    key = repo, str(constants.HF_HUB_CACHE)
    if key not in _fetched or not all((_fetched[key] / name).is_file() for name in needed):
        _fetched[key] = _fetch(repo, limits, needed)
    return _fetched[key]


def _fetch(repo: Repo, limits: Mapping[str, int], needed: tuple[str, ...]) -> Path:
    from huggingface_hub import HfApi, hf_hub_download

    if _COMMIT.fullmatch(repo.revision or "") and (folder := _cached(repo, limits, needed)) is not None:
        return folder  # a commit never changes
    try:
        with explained(repo):
            info = HfApi().model_info(repo.name, revision=repo.revision, files_metadata=True, timeout=SECONDS)
    except Unreachable as error:
        if (folder := _cached(repo, limits, needed)) is None:
            raise Unreachable(f"{error} The cache has no copy of {repo}.") from error
        _log.warning("note: the copy of %s in the cache is used (%s): %s", repo, folder.name[:8], error)
        return folder
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or [] if file.rfilename in limits}
    check_files(repo, sizes, limits, needed)
    with explained(repo):
        for name in sorted(sizes, key=lambda name: name == needed[0]):
            # The first needed file comes last and by the revision's own name: the cache keeps which commit that is,
            # and so it never points to a commit of which files are missing.
            revision = repo.revision if name == needed[0] else info.sha
            path = hf_hub_download(repo.name, name, revision=revision, tqdm_class=_patient_bar())
    if Path(path).parent.name != info.sha:
        raise DaariError(f"{repo} on the Hub was changed while it was fetched: run the same command again.")
    return Path(path).parent


def check_files(repo: Repo, sizes: Mapping[str, int], limits: Mapping[str, int], needed: tuple[str, ...]) -> None:
    """Raise :class:`DaariError` where a repository lacks a needed file, or has one that is too large."""
    if missing := [name for name in needed if name not in sizes]:
        raise DaariError(
            f"{repo} on the Hub is not a graph: it has no {' and no '.join(missing)}. "
            "Give a repository that daari-mlx push wrote."
        )
    for name, size in sizes.items():
        if size > limits[name]:
            raise DaariError(
                f"{name} of {repo} on the Hub has {size:,} bytes; none that belongs to a graph has more than "
                f"{limits[name]:,}. It was not downloaded: give another repository."
            )


def _cached(repo: Repo, limits: Mapping[str, int], needed: tuple[str, ...]) -> Path | None:
    """The folder in the cache, where all needed files of that revision are in it."""
    from huggingface_hub import try_to_load_from_cache

    found = [try_to_load_from_cache(repo.name, name, revision=repo.revision) for name in needed]
    paths = [Path(path) for path in found if isinstance(path, str)]
    fits = len(paths) == len(needed) and all(path.stat().st_size <= limits[path.name] for path in paths)
    return paths[0].parent if fits else None


def _patient_bar() -> Any:
    """A progress bar that shows only where a download takes longer than half a second."""
    from huggingface_hub.utils import tqdm

    class Patient(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{"delay": 0.5, **options})  # type: ignore[no-untyped-call]

    return Patient


@dataclass(frozen=True)
class Sent:
    """What :func:`send` left on the Hub: where, as which commit, and whether only its owners can see it."""

    url: str
    commit: str
    private: bool


def exists(name: str) -> bool:
    """Whether the Hub has a repository of that name that this user may know of."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    with explained(Repo(name)):
        try:
            HfApi().model_info(name, timeout=SECONDS)
        except GatedRepoError:
            return True
        except HfHubHTTPError as error:  # 401 stands for a missing repository too
            if error.response.status_code in (401, 403, 404):
                return False
            raise
    return True


def prepare(repo: Repo, *, public: bool, known: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """See that files may go to a repository: that it is theirs to replace, and as visible as was asked for.

    Args:
        public: whether everybody may see them.
        known: the files by which a repository of the same kind is known.
        others: files that any repository may have.

    Returns:
        Whether it has to be created.

    Raises:
        DaariError: it holds other things; it is public and that was not asked for, or the other way round.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    with explained(repo):
        try:
            info = HfApi().model_info(repo.name, timeout=SECONDS)
        except HfHubHTTPError as error:
            if error.response.status_code in (401, 404):  # no such repository, or none that this user may see
                return True
            raise
    files = {file.rfilename for file in info.siblings or []}
    if not files.issuperset(known) and (foreign := sorted(files - set(others))):
        raise DaariError(
            f"{repo} on the Hub holds other things ({', '.join(foreign[:3])}), not a graph: name another repository."
        )
    if not info.private and not public:
        raise DaariError(
            f"{repo} on the Hub is public, so everybody could read what is pushed. Give --public if that is meant; "
            "else name another repository, or make this one private in its settings."
        )
    if info.private and public:
        raise DaariError(
            f"{repo} on the Hub is private, and a push does not change that: leave --public out, or make it public "
            "in its settings."
        )
    return False


def send(repo: Repo, files: Mapping[str, bytes], *, create: bool, public: bool, message: str) -> Sent:
    """Send files as one commit: whoever fetches the repository gets all of them or none.

    Args:
        create: whether the repository has to be created, as :func:`prepare` told.

    Raises:
        DaariError: the Hub refuses, cannot be reached, or the connection broke; nothing was changed then, but that an
            empty repository may have been created.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi()
    with explained(repo, sending=True):
        if create:
            api.create_repo(repo.name, private=not public)
        # upload_folder may make several commits of one folder
        done = api.create_commit(
            repo.name,
            [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files.items()],
            commit_message=message,
        )
    _fetched.clear()
    return Sent(f"{api.endpoint}/{repo.name}", str(done.oid), not public)
