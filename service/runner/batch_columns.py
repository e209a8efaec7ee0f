"""What a step is told of each of its tokens, sequences and draws: the batch's columns, defined once.

From the definition are made: what is remembered in each row (sequence_rows.py), batches (selective_batching.py,
decode_batch.py), the fixed places that graphs and recordings read (graph_inputs.py, recorded_steps.py), and the
sampler's parameters. A column that comes from the sequence needs its line here, and the line where it is used.
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
    """What has one entry in the column."""

    TOKEN = auto()
    SEQUENCE = auto()
    DRAW = auto()
    ASKING_DRAW = auto()
    """A draw of a batch in which some sequence `asks_more`; such a batch is drawn kernel by kernel."""
    ROW = auto()
    """A row of SequenceRows, and nothing else: it is looked up on the host."""


@dataclass(frozen=True, slots=True)
class Column:
    """padding: what stands where there is no token, sequence or draw.

    of: reads it from the sequence when it is first scheduled; it is remembered in the sequence's row. None: the batch
    has another each time.
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
        """The same of some of the sequences, by a name that says so."""
        return replace(self, name=f"{kind}_{self.name}")


class BatchColumns:
    """All columns. The batch's own have their places in `decode_columns` and `flatten`; those that are remembered are
    carried along by their definition alone.

    slots: the names of those that say where a token's keys and values go, one for each group of layers. group_of: of
    each layer its group; empty where there is one.
    """

    def __init__(self, columns: Iterable[Column], groups: LayerGroups | None = None) -> None:
        num_groups = 1 if groups is None else groups.tables.size
        more = [replace(_SLOTS, name=f"{_SLOTS.name}_{group}") for group in range(1, num_groups)]
        self._columns = (*columns, *more)
        self.slots = (_SLOTS.name, *(column.name for column in more))
        self.group_of = () if groups is None or num_groups == 1 else groups.group_of
        self.remembered = {column.name: column.of for column in self._columns if column.of is not None}

    def over(self, groups: LayerGroups | None) -> BatchColumns:
        """The same, for layers in these groups."""
        return self if groups is None or groups.tables.size == 1 else BatchColumns(self._columns, groups)

    def __iter__(self) -> Iterator[Column]:
        return iter(self._columns)

    def per(self, *kinds: Per) -> tuple[Column, ...]:
        return tuple(column for column in self._columns if column.per in kinds)


_SLOTS = Column("slot_mapping", Per.TOKEN, np.int64, padding=-1)


def _num_logprobs(item: ScheduledSequence) -> int:
    """Of the most probable tokens; 0 also where others are asked for."""
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
"""context_lens: tokens in the cache after the step's write. rows: of SequenceRows; row 0 is padding's, without context,
and writes to slot -1, which is none. What padding draws, the largest logit, is ignored. sample_positions: of the drawn
tokens in their sequences. asks_more: the draws need more than the columns of every batch. num_logprobs: -1: none.
deterministic: the sequence's bits are to be those that it has alone."""

ADAPTER_COLUMNS = BatchColumns(
    (*BATCH_COLUMNS, Column("adapter_slots", Per.TOKEN, np.int32, of=lambda item: item.adapter_slot))
)
"""Where adapters are served. adapter_slots: of the token's adapter, 0 for none."""
