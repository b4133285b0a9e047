"""From a question to the request that the batch engine takes: token ids, limits, sampler, processors, seed."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from daari_mlx.batch.request import Request
from daari_mlx.decode.options import Length, Penalties, Sampling
from daari_mlx.decode.schema import Whitespace
from daari_mlx.decode.stops import stop_list
from daari_mlx.ground.errors import DaariError
from daari_mlx.job.asks import NOTHING, Ask
from daari_mlx.text.data import check_fits
from daari_mlx.text.messages import BadInput
from daari_mlx.text.rows import RowReader

SCHEMAS = 64  # that are kept, of rows that each name one


@dataclass(frozen=True)
class Manner:
    """How every row is answered, where it says nothing else.

    Attributes:
        length, sampling: as records of options.
        schema, whitespace: what answers are held to, or None.
        chat_template_config: further variables for the chat template.
        processors: further logits processors of mlx-lm's protocol, for every row; or None.
    """

    length: Length
    sampling: Sampling
    schema: dict[str, Any] | None = None
    whitespace: Whitespace = "compact"
    chat_template_config: dict[str, Any] | None = None
    processors: list[Any] | None = None


class Requests:
    """Questions → requests.

    Args:
        tokenizer: the teacher's.
        manner: how rows are answered.
        context_length: the most tokens that the teacher holds, or None.
    """

    def __init__(self, tokenizer: Any, manner: Manner, context_length: int | None) -> None:
        self.manner = manner
        self._tokenizer, self._context = tokenizer, context_length
        self._read = RowReader(tokenizer, manner.chat_template_config)
        self._grammars: dict[str, Any] = {}
        self._samplers: dict[Sampling, Any] = {}
        self._stop = stop_list(manner.length.stop)
        self._general = self._grammar(manner.schema)  # a schema that cannot be followed is told at once

    def prompt(self, ask: Ask) -> list[int]:
        """Token ids.

        Raises:
            BadInput: there are none, or more than the teacher's context leaves room for.
        """
        ids = self._read(ask.row).prompt
        if not ids:
            raise BadInput("the prompt is empty: it has no tokens")
        check_fits(len(ids), 1, self._context)
        return ids

    def checked(self, ask: Ask) -> list[int]:
        """See that a question can be asked; the token ids of its prompt.

        Raises:
            BadInput: it cannot.
        """
        try:
            self._processors(ask)
            self._sampler(self._sampling(ask))
            return self.prompt(ask)
        except BadInput:
            raise
        except DaariError as error:
            raise BadInput(str(error)) from error

    def request(self, ask: Ask, seed: int | None) -> Request:
        """The request.

        Args:
            seed: of the row's own random numbers; see :func:`row_seed`.

        Raises:
            DaariError: see :meth:`checked`.
        """
        own, manner = ask.own, self.manner
        return Request(
            self.prompt(ask),
            max_tokens=manner.length.max_tokens if own.max_tokens is None else own.max_tokens,
            sampler=self._sampler(self._sampling(ask)),
            logits_processors=self._processors(ask),
            stop=self._stop if own.stop is None else own.stop,
            seed=seed if own.seed is None else own.seed,
        )

    def draws(self, ask: Ask) -> bool:
        """Whether the answer depends on random numbers."""
        return self._sampling(ask).temp > 0

    def _sampling(self, ask: Ask) -> Sampling:
        return replace(self.manner.sampling, **ask.own.sampling) if ask.own is not NOTHING else self.manner.sampling

    def _sampler(self, sampling: Sampling) -> Any:
        if sampling.temp == 0:
            return None
        if sampling not in self._samplers:
            self._samplers[sampling] = sampling.sampler(self._tokenizer)
        return self._samplers[sampling]

    def _processors(self, ask: Ask) -> list[Any] | None:
        grammar = self._general if ask.own.schema is None else self._grammar(ask.own.schema)
        found = [*(self.manner.processors or []), *([] if grammar is None else [grammar])]
        if ask.own.penalties:
            found += Penalties(**ask.own.penalties).processors()
        return found or None

    def _grammar(self, schema: dict[str, Any] | None) -> Any:
        if schema is None:
            return None
        name = json.dumps(schema)
        if name not in self._grammars:
            from daari_mlx.decode.grammar import json_schema_processor

            if len(self._grammars) >= SCHEMAS:
                self._grammars.clear()
            self._grammars[name] = json_schema_processor(self._tokenizer, schema, self.manner.whitespace)
        return self._grammars[name]


def row_seed(seed: int, key: bytes) -> int:
    """The seed of one row: of the job's and of what the row asks, wherever it stands."""
    return int.from_bytes(blake2b(key, digest_size=4, salt=seed.to_bytes(8, "little")).digest(), "little") >> 1
