"""The folder beside a job's output: its settings and its answers, so that the same command goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import PARTIAL, read_json, write_json
from daari_mlx.ground.lock import Lock
from daari_mlx.ground.regular import FOLDER, what_is
from daari_mlx.job.journal import Journal
from daari_mlx.teacher.ranks import Alone

FORMAT = 1
SUFFIX = ".work"
BUSY = "{folder} is being filled by {who}. Wait until it ends, or name another --out."
NOT_OURS = ("source", "adapter_path")  # of a teacher's fingerprint: where it was loaded from is no setting


class JobFolder:
    """The folder of the job that writes ``out``."""

    def __init__(self, out: Path) -> None:
        self.out, self.path = out, out.with_name(out.name + SUFFIX)
        self.partial = out.with_name(out.name + PARTIAL)
        if (found := what_is(self.path)) not in (None, FOLDER):
            raise DaariError(f"{self.path}, where this job keeps its answers, is {found}: name another --out.")

    @property
    def settings_path(self) -> Path:
        """What the answers were asked with."""
        return self.path / "job.json"

    @property
    def lock_path(self) -> Path:
        """Held while a run is under way."""
        return self.path / "job.lock"

    def journal(self) -> Journal:
        """The answers so far."""
        return Journal(self.path / "answers")

    def check(self) -> None:
        """See that what stands at ``out``, and where it is written, is this job's own.

        Raises:
            DaariError: a file that no job wrote, or a folder that is no job's.
        """
        if self.settings_path.exists():
            return
        for path in (self.out, self.partial):
            if path.exists():
                raise DaariError(
                    f"{path} is there, and no {self.path.name} beside it says that a job wrote it: it is not replaced. "
                    "Remove it, or name another --out."
                )
        there = self.path.iterdir() if self.path.exists() else []
        others = sorted(found.name for found in there if found.name != self.lock_path.name)
        if others:
            raise DaariError(f"{self.path} holds other things ({', '.join(others[:3])}): name another --out.")

    def check_apart(self, data: Path) -> None:
        """See that the rows lie elsewhere than what this job writes, and removes.

        Raises:
            DaariError: they do not.
        """
        for path in (self.out, self.partial):
            if what_is(path) is not None and what_is(data) is not None and os.path.samefile(data, path):
                written = "" if path == self.out else ", which is written to while the job runs"
                raise DaariError(f"--data {data} is {path}{written}: name another --out.")
        if self.path.resolve() in data.resolve().parents:
            raise DaariError(
                f"--data {data} lies in {self.path}, where this job keeps its answers: name another --out."
            )

    def recorded(self, name: str) -> Any:
        """A setting of the job that is under way; None where there is no job, or it has none such."""
        return self._settings().get(name) if self.settings_path.exists() else None

    def _settings(self) -> dict[str, Any]:
        return read_json(self.settings_path, "record of a job")

    def begin(self, settings: dict[str, Any]) -> None:
        """Record the settings, or see that the recorded ones are the same.

        Raises:
            DaariError: they are others; the folder is left as it is.
        """
        new = {"format_version": FORMAT, **json.loads(json.dumps(settings, default=str))}
        self.check()
        if not self.settings_path.exists():
            write_json(self.settings_path, new)
            return
        old = self._settings()
        if names := [name for name in {**old, **new} if old.get(name) != new.get(name)]:
            names = [name for name in names if name in old and name in new] or names  # others follow from these
            told = "; ".join(f"{n}: there {_short(old.get(n))}, now {_short(new.get(n))}" for n in names)
            raise DaariError(
                f"{self.path} holds answers that were asked with other settings ({told}), and they are not mixed. Give "
                f"those settings again, or name another --out; rm -r {shlex.quote(str(self.path))} starts afresh."
            )

    @contextmanager
    def held(self, settings: dict[str, Any], rows: bytes, crew: Alone) -> Iterator[str]:
        """The folder is this run's until the end; gives a name for the run, the same on every rank.

        Args:
            rows: a hash of all rows, to see that all ranks have the same.

        Raises:
            DaariError: other settings; another run is under way; ranks that differ.
        """
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode() + rows).hexdigest()
        same = crew.told(digest) == digest
        crew.agree(None if same else DaariError(f"Rank {crew.rank} was given other rows or options than rank 0."))
        run = crew.told(f"{time.time_ns():020d}-{os.urandom(4).hex()}")
        lock: Lock | None = None

        def begin() -> None:
            nonlocal lock
            self.check()
            self.path.mkdir(parents=True, exist_ok=True)
            lock = Lock(self.lock_path, run, BUSY)
            self.begin(settings)
            if crew.size > 1 and not lock.joined:
                lock.share()

        try:
            crew.in_turn(begin)
            yield run
            crew.agree()
        finally:
            if lock is not None:
                lock.release()


def teacher_settings(fingerprint: dict[str, Any]) -> dict[str, Any]:
    """What identifies the teacher, wherever it was loaded from."""
    return {name: value for name, value in fingerprint.items() if name not in NOT_OURS}


def _short(value: Any) -> str:
    text = f"weights {str(value.get('weights'))[:8]}" if isinstance(value, dict) and "weights" in value else str(value)
    return text if len(text) <= 60 else text[:40] + "…"
