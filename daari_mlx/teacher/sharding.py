"""One teacher over several ranks, where it is too large for one machine: loaded by mlx-lm's own sharding."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from daari_mlx.ground.errors import DaariError
from daari_mlx.teacher.fingerprint import fingerprint_whole
from daari_mlx.teacher.load import Teacher, load_teacher
from daari_mlx.teacher.ranks import Alone


@dataclass(frozen=True)
class ShardedTeacher(Teacher):
    """This rank's share of a teacher; every forward has to be run by all ranks.

    Attributes:
        whole: the fingerprint of the teacher as it is on one machine, which is what a graph belongs to.
    """

    whole: dict[str, Any] = field(default_factory=dict)

    def fingerprint(self) -> dict[str, Any]:
        """What identifies the teacher, not this rank's share of it."""
        return {**self.whole, "source": self.source, "adapter_path": self.adapter_path}


def load_sharded(model: str, how: str, crew: Alone, *, trust_remote_code: bool = False) -> ShardedTeacher:
    """Load this rank's share of a teacher.

    Args:
        model: a folder or a Hub repository.
        how: ``"tensor"``: every layer is split over the ranks; ``"pipeline"``: each rank has some of the layers.
        crew: the ranks.

    Raises:
        DaariError: there is one rank only; no such model; mlx-lm cannot shard this architecture so.
    """
    from mlx_lm.utils import sharded_load

    if crew.size < 2:
        raise DaariError(
            "--shard-model splits a model over several processes, and this is one: start it with mlx.launch -n 2 or "
            "more."
        )
    whole = ""
    if crew.rank == 0:  # the others wait: one reads the weights, array by array
        known = load_teacher(model, trust_remote_code=trust_remote_code, lazy=True)
        whole = json.dumps(fingerprint_whole(known.model, known.tokenizer))
    whole = crew.told(whole)
    group = mx.distributed.init()
    try:
        loaded, tokenizer = sharded_load(
            repo=model,
            pipeline_group=group if how == "pipeline" else None,
            tensor_group=group if how == "tensor" else None,
            tokenizer_config={"trust_remote_code": trust_remote_code},
            trust_remote_code=trust_remote_code,
        )
    except (OSError, ValueError, KeyError) as error:
        other = "tensor" if how == "pipeline" else "pipeline"
        raise DaariError(
            f"mlx-lm cannot shard the model in {model!r} by {how} ({error}): try --shard-model {other}, or a machine "
            "that holds it."
        ) from error
    return ShardedTeacher(loaded, tokenizer, model, whole=json.loads(whole))
