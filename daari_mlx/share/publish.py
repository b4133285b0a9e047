"""Graphs to and from the Hub: what leaves this machine names nothing of it, and what comes is checked as any folder."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from daari_mlx.graph.artifact import ARRAYS, CARD, CONFIG, LIMITS, STATS, check_target, read_stats, seal
from daari_mlx.graph.card import card_text
from daari_mlx.graph.codepoints import BREAK
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import read_json, read_json_lines, whole
from daari_mlx.share import hub
from daari_mlx.share.find import graph_folder, load_graph
from daari_mlx.share.repo import Repo, parse_repo
from daari_mlx.share.scrub import scrub

RESULTS = "Give a file that daari-mlx bench --out wrote."
OTHERS = (".gitattributes", ".gitignore", "LICENSE", CARD)  # files that any repository may have
_NUMBER = (int, float)
TOLD: dict[str, Any] = {  # of a benchmark record, by the kind of each
    "ok": bool,
    "graph": dict,
    "teacher.is": str,
    "n": int,
    "mean_tokens": _NUMBER,
    "tokens_per_forward": _NUMBER,
    "acceptance_rate": _NUMBER,
    "identity.identical": int,
    "identity.failed": int,
    "losing.count": int,
    "decode_ratio.median": _NUMBER,
    "decode_ratio.lower": _NUMBER,
    "decode_ratio.upper": _NUMBER,
    "device": str,
    "dtype": str,
    "versions.mlx": str,
    "versions.mlx-lm": str,
}


@dataclass(frozen=True)
class Publication:
    """A graph as it would leave this machine.

    Attributes:
        repo: where to.
        public, create: whether everybody may see it, and whether the repository has to be created.
        files: name -> content: what was checked is what is sent, whatever becomes of the folder.
        base_model: the teacher's name on the Hub; None where it has none.
        left_out: entries of the graph's files that stay here, e.g. ``"teacher.source"``.
        answers, tokens: how many answers can be read back from it, and their tokens.
    """

    repo: Repo
    public: bool
    create: bool
    files: dict[str, bytes]
    base_model: str | None
    left_out: tuple[str, ...]
    answers: int
    tokens: int

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(map(len, self.files.values()))


def prepare(
    graph: str | Path,
    repo: str,
    *,
    public: bool = False,
    base_model: str | None = None,
    license: str | None = None,
    results: Sequence[str | Path] = (),
) -> Publication:
    """See that a graph can be pushed, and make its public copy; nothing is sent yet.

    Args:
        graph: its folder.
        repo: ``user/name``, which is created where it is missing.
        public: whether everybody may see it.
        base_model: the teacher's name on the Hub; None takes where it was loaded from, if the Hub knows that name.
        license: the Hub's word for the licence.
        results: files of benchmark records; those of this graph go into the card.

    Raises:
        DaariError: the graph is damaged; the repository's name is none, or it holds other things, or is visible to
            others than was asked for; a record tells of failed answers, or none is of this graph.
    """
    folder, target = graph_folder(graph), _repo(repo)
    if target.revision is not None:
        raise DaariError(f"{target} names a revision, and a push makes a new one: give {target.name}.")
    known = load_graph(folder)
    config = read_json(folder / CONFIG, "graph's config.json")
    stats = read_stats(folder) if (folder / STATS).exists() else {}
    records = held_out(results, config) if results else []  # before the Hub is asked
    source = config["teacher"].get("source")
    base_model = _base_model(base_model, source)
    create = hub.prepare(target, public=public, known=(CONFIG, ARRAYS), others=OTHERS)
    config, left_out = scrub({name: value for name, value in config.items() if name != "config_sha256"})
    stats, left_out_too = scrub(stats)
    config["teacher"] |= {"source": base_model, "adapter_path": None}
    left_out = [name for name in left_out if name != "teacher.source" or source != base_model]
    config["config_sha256"] = seal(config)
    card = card_text(config, stats, repo=target.name, base_model=base_model, license=license, records=records)
    files: dict[str, bytes] = {
        CONFIG: _json(config),
        STATS: _json(stats),
        CARD: card.encode(),
        ARRAYS: (folder / ARRAYS).read_bytes(),
    }
    _check_copy(files)
    breaks = int((known.text == BREAK).sum())
    tokens = len(known.text) - breaks
    return Publication(target, public, create, files, base_model, (*left_out, *left_out_too), breaks, tokens)


def push(publication: Publication, message: str = "A daari-mlx graph") -> hub.Sent:
    """Send what :func:`prepare` made, as one commit."""
    return hub.send(
        publication.repo,
        publication.files,
        create=publication.create,
        public=publication.public,
        message=message,
    )


def pull(repo: str, graph_path: str | Path | None = None, *, replace: bool = False) -> dict[str, Any]:
    """Fetch a graph from the Hub, check all of it, and put it into a folder, whole or not at all.

    Args:
        repo: ``user/name`` or ``user/name@revision``.
        graph_path: the folder; None for one of the repository's name here.
        replace: whether another graph in it may be replaced; a copy of what is fetched always is.

    Returns:
        ``graph``, ``repo``, ``commit``, ``bytes`` and ``teacher``.

    Raises:
        DaariError: the Hub does not give it, it is no sound graph, or something else stands at ``graph_path``.
    """
    source = _repo(repo)
    target = Path(source.name.split("/")[1]) if graph_path is None else graph_path
    check_target(target)
    target = Path(target)
    folder = hub.fetch(source, LIMITS, needed=(CONFIG, ARRAYS))
    known = load_graph(folder)
    if not replace and not _is_copy(target, folder):
        raise DaariError(
            f"{target} holds a graph that is not the one of {source}: name another --graph-path, or replace it with "
            "--force."
        )
    with whole(target, folder=True) as beside:
        beside.mkdir(parents=True)
        for name in LIMITS:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, beside / name)
    size = sum(file.stat().st_size for file in target.iterdir())
    return {
        "graph": str(target),
        "repo": source.name,
        "commit": folder.name,
        "bytes": size,
        "teacher": known.teacher,
    }


def _is_copy(target: Path, folder: Path) -> bool:
    """Whether nothing is lost where ``folder`` takes the place of ``target``: no graph is there, or the same one."""
    if not (target / ARRAYS).is_file():
        return True
    try:
        there, fetched = (read_json(path / CONFIG, "graph's config.json") for path in (target, folder))
    except DaariError:  # a damaged one may still be worth something to its owner
        return False
    return there.get("arrays_sha256") == fetched.get("arrays_sha256")


def held_out(results: Sequence[str | Path], config: dict[str, Any]) -> list[dict[str, Any]]:
    """The benchmark records of a graph on prompts that it does not know, in the order they were written.

    Raises:
        DaariError: a file cannot be read; a record tells of answers that were not plain's; no record is of this graph.
    """
    weights = f"weights {str(config['teacher'].get('weights'))[:8]}"
    found, overlapping, other = [], 0, 0
    for record in (r for path in results for r in read_json_lines(Path(path), "file of results", instead=RESULTS)):
        if not _is_benchmark(record):
            other += 1
            continue
        same = all(record["graph"].get(name) == config["counts"].get(name) for name in ("nodes", "edges", "steps"))
        if not same or weights not in record["teacher"]["is"]:
            other += 1
        elif not record["ok"]:
            raise DaariError(
                f"A benchmark of this graph has {record['identity']['failed']} answers that are not plain's own: "
                "there is no speed-up to tell. Leave --results out, or measure again."
            )
        elif record.get("overlap"):
            overlapping += 1
        else:
            found.append(record)
    if not found:
        raise DaariError(
            f"No benchmark of this graph on held-out prompts is in {', '.join(map(str, results))} (found {other} "
            f"records of other things, {overlapping} on prompts that the graph was compiled from): "
            "write one with daari-mlx bench --out."
        )
    return found


def _is_benchmark(record: dict[str, Any]) -> bool:
    """Whether it has all that a card tells, each of its kind."""
    for path, kinds in TOLD.items():
        value: Any = record
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            return False
    return True


def _repo(text: str) -> Repo:
    repo = parse_repo(text)
    if repo is None:
        raise DaariError(f"{text!r} does not name a Hub repository: give it as user/name.")
    return repo


def _base_model(given: str | None, source: Any) -> str | None:
    """The teacher's name on the Hub; a folder's path can look like one, so the Hub is asked."""
    if given is not None:
        named = _repo(given)
        if named.revision is not None:
            raise DaariError(f"{given} names a revision, which the Hub's cards do not know: give {named.name}.")
        return named.name
    if not isinstance(source, str) or os.path.exists(source):
        return None
    repo = parse_repo(source)
    return repo.name if repo is not None and repo.revision is None and hub.exists(repo.name) else None


def _json(entries: dict[str, Any]) -> bytes:
    return (json.dumps(entries, indent=2, ensure_ascii=False) + "\n").encode()


def _check_copy(files: dict[str, bytes]) -> None:
    """The public copy is read back before it is sent: who fetches it must be able to."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        load_graph(folder)
