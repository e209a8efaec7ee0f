"""The columns of a batch: what a step is told of each token, sequence and draw, defined once.

Made from this definition: the remembered rows (sequence_rows.py), batches (selective_batching.py), the fixed inputs of
graphs and recordings (graph_inputs.py, recorded_steps.py), and the sampler's parameters. A new column that comes from
the sequence needs one line here, and one where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

from service.core.layer_groups import LayerGroups
from service.core.scheduled_sequence import ScheduledSequence

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Array = npt.NDArray[Any]

_INT32_MAX = 2**31 - 1


class Per(Enum):
    """What one entry of a column belongs to."""

    TOKEN = auto()
    SEQUENCE = auto()
    DRAW = auto()
    ASKING_DRAW = auto()
    """A draw of a batch in which some sequence `asks_more`; such a batch is drawn kernel by kernel."""
    ROW = auto()
    """A row of SequenceRows only: looked up on the host."""


@dataclass(frozen=True, slots=True)
class Column:
    """padding: the value where there is no token, sequence or draw.

    of: reads the value from the sequence when it is first scheduled; the sequence's row remembers it. None: each batch
    has its own values.
    """

    name: str
    per: Per
    dtype: type[np.generic]
    padding: float = 0
    of: Callable[[ScheduledSequence], float] | None = None

    def padded(self, num: int) -> Array:
        """`num` entries of padding."""
        return np.full(num, self.padding, self.dtype)

    def of_the(self, kind: str) -> Column:
        """The same column for some of the sequences, named `{kind}_{name}`."""
        return replace(self, name=f"{kind}_{self.name}")


class BatchColumns:
    """All columns. `decode_columns` and `flatten` compute a batch's own columns; remembered ones need only their
    definition.

    slots: names of the slot mapping columns, one per group of layers. group_of: the group of each layer; empty if there
    is only one group.
    """

    def __init__(self, columns: Iterable[Column], groups: LayerGroups | None = None) -> None:
        num_groups = 1 if groups is None else groups.tables.size
        more = [replace(_SLOTS, name=f"{_SLOTS.name}_{group}") for group in range(1, num_groups)]
        self._columns = (*columns, *more)
        self.slots = (_SLOTS.name, *(column.name for column in more))
        self.group_of = () if groups is None or num_groups == 1 else groups.group_of
        self.remembered = {column.name: column.of for column in self._columns if column.of is not None}

    def over(self, groups: LayerGroups | None) -> BatchColumns:
        """The same columns, for layers in these groups."""
        return self if groups is None or groups.tables.size == 1 else BatchColumns(self._columns, groups)

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def per(self, *kinds: Per) -> tuple[Column, ...]:
        return tuple(column for column in self._columns if column.per in kinds)


_SLOTS = Column("slot_mapping", Per.TOKEN, np.int64, padding=-1)


def _num_logprobs(item: ScheduledSequence) -> int:
    """How many of the most probable tokens are asked for: 0 also where the request names tokens itself, -1 for no
    logprobs."""
    num = item.sampling.num_logprobs
    return -1 if num is None else 0 if item.sampling.logprob_token_ids else num


BATCH_COLUMNS = BatchColumns(
    (
        Column("token_ids", Per.TOKEN, np.int64),
        Column("positions", Per.TOKEN, np.int64),
        _SLOTS,
        Column("rows", Per.SEQUENCE, np.int64),
        Column("context_lens", Per.SEQUENCE, np.int32),
        Column("seeds", Per.DRAW, np.int64),
        Column("sample_positions", Per.DRAW, np.int64),
        Column("temperature", Per.DRAW, np.float32, of=lambda item: item.sampling.temperature),
        Column("top_p", Per.DRAW, np.float32, padding=1, of=lambda item: item.sampling.top_p),
        Column("top_k", Per.DRAW, np.int32, of=lambda item: min(item.sampling.top_k, _INT32_MAX)),
        Column("min_p", Per.ASKING_DRAW, np.float32, of=lambda item: item.sampling.min_p),
        Column("repetition_penalty", Per.ASKING_DRAW, np.float32, 1, lambda item: item.sampling.repetition_penalty),
        Column("presence_penalty", Per.ASKING_DRAW, np.float32, of=lambda item: item.sampling.presence_penalty),
        Column("frequency_penalty", Per.ASKING_DRAW, np.float32, of=lambda item: item.sampling.frequency_penalty),
        Column("asks_more", Per.ROW, np.bool_, of=lambda item: not item.sampling.is_plain),
        Column("num_logprobs", Per.ROW, np.int32, -1, _num_logprobs),
        Column("deterministic", Per.ROW, np.bool_, of=lambda item: item.sampling.deterministic),
    )
)
"""context_lens: tokens in the cache after the step's write. rows: of SequenceRows. Padding has row 0 and no context,
and its slot -1 is skipped; it draws its largest logit, which is ignored. sample_positions: of the drawn tokens in their
sequences. asks_more: the draws need more than the columns of every batch. num_logprobs: -1: none. deterministic: the
sequence gets the same bits as it would alone."""

ADAPTER_COLUMNS = BatchColumns(
    (*BATCH_COLUMNS, Column("adapter_slots", Per.TOKEN, np.int32, of=lambda item: item.adapter_slot))
)
"""Where adapters are served. adapter_slots: the slot of the token's adapter, 0 for none."""
