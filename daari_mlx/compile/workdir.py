"""The working folder of extract and compile: what lies where, and whether it belongs to this very run."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from daari_mlx.graph.nodes import Projection
from daari_mlx.ground.errors import DaariError
from daari_mlx.ground.files import load_arrays, read_json, write_json
from daari_mlx.ground.given import check_name
from daari_mlx.ground.regular import FOLDER, what_is

FORMAT = 2


@dataclass(frozen=True)
class Plan:
    """What a working folder is being filled with; two runs may share it only when all of this is equal.

    Attributes:
        teacher: the teacher's fingerprint.
        corpus: hash over what the rows say, whatever a clock in the chat template printed; of older versions over
            their tokens.
        rows: how many of them.
        answers: ``"reference"`` or ``"teacher"``.
        max_tokens: the longest answer that the teacher gives; unused with reference answers.
        layer: whose states are taken.
        dimensions: of the reduced states.
        seed: order of the sequences.
        chat_template_config: further variables that the chat template was given; None for none.
    """

    teacher: dict[str, Any]
    corpus: str
    rows: int
    answers: str
    max_tokens: int
    layer: int | str
    dimensions: int
    seed: int
    chat_template_config: dict[str, Any] | None = None


@dataclass(frozen=True)
class Shard:
    """The reduced states of some sequences; with R rows of S sequences:

    Attributes:
        reduced: ``(R, D)`` float16.
        tokens: ``(R,)`` int32, the token that followed each state.
        rows: ``(S,)`` int32, how many rows each sequence has.
        lead: ``(S,)`` int32, how many of its first rows lie before the answer: they lead into it and are never drafted.
        prompts: ``(S,)`` uint64, content hash of each prompt.
        before: the prompt tokens ahead of each sequence's rows, one sequence after the other, int32.
        before_rows: ``(S,)`` int32, how many of them each sequence has.
    """

    reduced: np.ndarray
    tokens: np.ndarray
    rows: np.ndarray
    lead: np.ndarray
    prompts: np.ndarray
    before: np.ndarray
    before_rows: np.ndarray


class Workdir:
    """Paths and records of one working folder."""

    def __init__(self, path: str | Path) -> None:
        check_name(path, "workdir")
        self.path = Path(path)
        if (found := what_is(self.path)) not in (None, FOLDER):
            raise DaariError(f"The workdir {self.path} is {found}: name a folder.")

    @property
    def plan_path(self) -> Path:
        return self.path / "extract.json"

    @property
    def rows_path(self) -> Path:
        """The rows as they were rendered first; see :mod:`daari_mlx.compile.rendered`."""
        return self.path / "rows.safetensors"

    @property
    def projection_path(self) -> Path:
        return self.path / "projection.safetensors"

    @property
    def layout_path(self) -> Path:
        """How the teacher's forwards are laid out."""
        return self.path / "layout.json"

    @property
    def lock_path(self) -> Path:
        """Held while a run fills the folder."""
        return self.path / "extract.lock"

    @property
    def done_path(self) -> Path:
        """Stands once every shard is there."""
        return self.path / "extract_stats.json"

    def answers_path(self, part: int) -> Path:
        return self.path / "answers" / f"{part:05d}.json"

    def raw_path(self, part: int) -> Path:
        """Unreduced states: only until the projection is fitted."""
        return self.path / "raw" / f"{part:05d}.safetensors"

    def shard_path(self, part: int) -> Path:
        return self.path / "shards" / f"{part:05d}.safetensors"

    def begin(self, plan: Plan, rendered: str | None = None) -> None:
        """Record the plan, or see that the recorded one is the same.

        Args:
            rendered: the hash over rendered rows by which an older version knew the corpus; that does too.

        Raises:
            DaariError: the folder belongs to another run; it is left as it is.
        """
        new = {"format_version": FORMAT, **asdict(plan)}
        self.check_own()
        if not self.plan_path.exists():
            write_json(self.plan_path, new)
            return
        old = read_json(self.plan_path, "extraction record")
        names = [name for name in new if name != "teacher" and old.get(name) != new[name]]
        if rendered is not None and old.get("corpus") == rendered:
            names.remove("corpus")
        theirs = old.get("teacher")
        ours = {k: v for k, v in plan.teacher.items() if k not in ("source", "adapter_path")}
        if not isinstance(theirs, dict) or any(theirs.get(k) != v for k, v in ours.items()):
            names.insert(0, "teacher")
        if names:
            others = (f"{n}: there {_short(old.get(n))}, now {_short(new[n])}" for n in names if n != "corpus")
            kinds = [f"with other settings ({told})"] if (told := "; ".join(others)) else []
            what = " and ".join([*(["of other data"] if "corpus" in names else []), *kinds])
            raise DaariError(
                f"The workdir {self.path} holds an extraction {what}, kept so that it can go on. Give what it was "
                f"begun with to go on with it, or start afresh: rm -r {shlex.quote(str(self.path))}. "
                "Name another --workdir to keep both."
            )

    def check_own(self) -> None:
        """See that the folder is a workdir, or empty.

        Raises:
            DaariError: it holds other things; compile removes a workdir after success.
        """
        if self.plan_path.exists() or not self.path.exists():
            return
        own = (self.plan_path.name, self.lock_path.name)
        other = sorted(found.name for found in self.path.iterdir() if not found.name.startswith(own))
        if other:
            raise DaariError(
                f"The workdir {self.path} holds other things ({', '.join(other[:3])}): name another --workdir."
            )

    def read_plan(self) -> Plan:
        """The recorded plan.

        Raises:
            DaariError: there is none, or of another version.
        """
        record = read_json(self.plan_path, "extraction record (extract.json)")
        version = record.pop("format_version", None)
        record.setdefault("chat_template_config", None)  # older ones do not tell
        if version != FORMAT or set(record) != set(Plan.__dataclass_fields__):
            raise DaariError(
                f"{self.plan_path} is of version {version}, this one reads version {FORMAT}: extract again."
            )
        if record["layer"] == "auto":
            raise DaariError(
                f"{self.plan_path} asks for --layer auto, which is gone: remove the workdir and extract again."
            )
        return Plan(**record)

    def read_projection(self) -> Projection:
        arrays = load_arrays(self.projection_path)
        return Projection(mean=arrays["mean"], basis=arrays["basis"])

    def read_shards(self, *, states: bool = True) -> Iterator[Shard]:
        """Every shard of the finished extraction in order, one at a time in memory.

        Args:
            states: False leaves the states on the disk: ``reduced`` is ``(0, 0)`` then.

        Raises:
            DaariError: one is missing or cannot be read.
        """
        for number in range(self.shard_count()):
            path = self.shard_path(number)
            if not path.exists():
                raise DaariError(
                    f"The workdir {self.path} lacks {path.name}: extract again with the same options, it goes on."
                )
            if states:
                shard = Shard(**load_arrays(path))
                if not np.isfinite(shard.reduced).all():
                    raise DaariError(
                        f"{path} is damaged: it holds states that are not finite. Remove it and extract again with the "
                        "same options: that goes on."
                    )
                yield shard
            else:
                yield Shard(**load_arrays(path, without="reduced"), reduced=np.zeros((0, 0), np.float16))

    def shard_count(self) -> int:
        """How many shards the finished extraction wrote."""
        count = read_json(self.done_path, "finished extraction").get("shards")
        if type(count) is not int or count < 0:
            raise DaariError(f"{self.done_path} is damaged: it counts {count!r} shards. Remove it and extract again.")
        return count

    def is_finished(self) -> bool:
        """Whether the record of a finished extraction stands, and every shard that it counts."""
        return self.done_path.exists() and all(self.shard_path(k).exists() for k in range(self.shard_count()))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value.get('source') or value.get('model_type')} (weights {str(value.get('weights'))[:8]})"
    text = str(value)
    return text if len(text) <= 40 else text[:12] + "…"
