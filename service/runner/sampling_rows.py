"""What the executor remembers of sequences whose draws need more than the columns of every batch.

Numbers from the request are columns (batch_columns.py). Here is what depends on a sequence's ids: on its past when the
executor first sees it, and on every id that it computes from then on. An id is counted when it is computed, not when it
is drawn. So a fork, a swap-in and a recomputation need no special care, and the last id may be known to the device
only.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.batch_columns import Array, Int32Array
from service.runner.device_copies import to_device
from service.runner.selective_batching import FlatBatch, PlanColumns
from service.runner.sequence_rows import SequenceRows
from service.sampling.logprobs import num_top_for
from service.sampling.sampling_extras import AskedTokens, LogitBias, Penalties, SamplingExtras, TokenBitmask
from service.sampling.token_counts import TokenCounts

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SamplingRow:
    """One sequence.

    slot: of its token counts; -1 without penalties. output_ids: generated ids computed so far, if bad words of several
    tokens look back at them. bias_ids, bias_values: added to its logits at every draw. mask: words of a bitmask of its
    allowed tokens.
    """

    sampling: SamplingParams
    num_prompt_tokens: int
    slot: int
    output_ids: list[int] | None
    bias_ids: Int32Array
    bias_values: npt.NDArray[np.float32]
    mask: Tensor | None

    @property
    def restricts(self) -> bool:
        """Whether its draws need restrictions or biases that are worked out on the host for this sequence."""
        looks_back = self.output_ids is not None or self.sampling.min_tokens > 0
        return looks_back or len(self.bias_ids) > 0 or self.mask is not None


class SamplingRows:
    """Row -> SamplingRow, for the rows of SequenceRows that `asks_more`. Engine thread.

    If a plain sequence takes over a row without a release, the entry here stays unused until the next sequence that
    asks for more.
    """

    def __init__(self, rows: SequenceRows, vocab_size: int, device: torch.device) -> None:
        self._sequence_rows = rows
        self._vocab_size = vocab_size
        self._device = device
        self._counts = TokenCounts(vocab_size, device)
        self._rows: dict[int, SamplingRow] = {}
        # Per row, as in its SamplingRow: rows that need no more than these cost no Python step in an iteration.
        self._slots = np.full(0, -1)
        self._num_prompt_tokens = np.zeros(0, np.int64)
        self._restricts = np.zeros(0, np.bool_)
        self._asks_for_tokens = np.zeros(0, np.bool_)

    def __len__(self) -> int:
        return len(self._rows)

    def release(self, row: int) -> None:
        """Forget the row's sequence. A row without an entry is no error."""
        known = self._rows.pop(row, None)
        if known is not None and known.slot >= 0:
            self._counts.release(known.slot)

    def update(
        self, scheduled: Sequence[ScheduledSequence], planned: PlanColumns, batch: FlatBatch, token_ids: Tensor
    ) -> None:
        """Add new sequences, and count the ids that the plan computes. scheduled: the plan's, from which `planned` and
        `batch` were made. token_ids [T]: the batch's, on the device."""
        rows, asks = planned.rows, self._sequence_rows["asks_more"][planned.rows]
        for index in asks[len(rows) - len(scheduled) :].nonzero()[0].tolist():
            self._take_over(scheduled[index])
        position, query_lens, starts = planned.num_computed_tokens, planned.query_lens, batch.token_starts
        for index in (asks & self._restricts[rows]).nonzero()[0].tolist():
            row = self._rows[rows[index]]
            if row.output_ids is not None:
                skipped = min(max(0, row.num_prompt_tokens - position[index]), query_lens[index])
                stop = starts[index] + query_lens[index]
                row.output_ids += batch.tokens["token_ids"][starts[index] + skipped : stop].tolist()
        slots = np.where(asks, self._slots[rows], -1)
        is_decode = (query_lens == 1) & (position >= self._num_prompt_tokens[rows])
        for index in ((slots >= 0) & ~is_decode).nonzero()[0].tolist():
            ids = token_ids[starts[index] : starts[index] + query_lens[index]]
            self._note(self._rows[rows[index]], int(position[index]), ids)
        (decodes,) = ((slots >= 0) & is_decode).nonzero()
        if len(decodes):
            arrays = {"slots": slots[decodes].astype(np.int32), "places": starts[decodes]}
            there = to_device(arrays, self._device)
            self._counts.note_one_each(there["slots"], token_ids.index_select(0, there["places"]))

    def asked_tokens(self, batch: FlatBatch) -> dict[int, tuple[int, ...]]:
        """Draw -> the tokens whose logprobs it wants instead of the most probable ones, in order of the draws. Call it
        after `update`."""
        rows = batch.draw_rows
        (draws,) = (self._sequence_rows["asks_more"][rows] & self._asks_for_tokens[rows]).nonzero()
        return {draw: self._rows[rows[draw]].sampling.logprob_token_ids for draw in draws.tolist()}

    def extras(
        self, batch: FlatBatch, asked_tokens: Mapping[int, tuple[int, ...]]
    ) -> tuple[SamplingExtras, list[int | None]]:
        """What the draws ask for, and how many top logprobs each wants. Call it after `update`. asked_tokens: from the
        method of that name."""
        rows = batch.draw_rows
        asks, asked = self._sequence_rows["asks_more"][rows], self._sequence_rows["num_logprobs"][rows]
        arrays: dict[str, Array] = {}
        slots = np.where(asks, self._slots[rows], -1)
        if (slots >= 0).any():
            arrays["slots"] = slots.astype(np.int32)
        restrictions = _Restrictions(batch.num_draws)
        for draw in (asks & self._restricts[rows]).nonzero()[0].tolist():
            self._restrict(restrictions, draw, self._rows[rows[draw]], int(batch.draws["sample_positions"][draw]))
        if asked_tokens:
            arrays["asked_rows"] = np.fromiter(asked_tokens, np.int64)
            arrays["asked_ids"] = _padded(list(asked_tokens.values()))
        there = to_device(arrays | restrictions.arrays(), self._device)
        extras = SamplingExtras(
            Penalties(self._counts.table, there["slots"]) if "slots" in there else None,
            LogitBias(there["bias_rows"], there["bias_ids"], there["bias_values"]) if "bias_rows" in there else None,
            restrictions.bitmasks(there),
            bool(batch.draws["min_p"].any()),
            num_top_for(int(asked.max()), self._vocab_size) if (asked >= 0).any() else None,
            AskedTokens(there["asked_rows"], there["asked_ids"]) if asked_tokens else None,
        )
        return extras, [None if num < 0 else num for num in asked.tolist()]

    def _take_over(self, item: ScheduledSequence) -> None:
        """Add an entry if the plan sends a whole block table, so the sequence may be new. A known one may get its whole
        table, too (copy-on-write of its first block); without its past it keeps its entry, and if it needs no past, an
        equal entry is made."""
        is_known = item.sampling.looks_back and item.past is None
        if not item.block_ids or item.table_start > 0 or (is_known and item.row in self._rows):
            return
        self.release(item.row)
        row = self._rows[item.row] = self._new_row(item)
        self._reserve(self._sequence_rows.num_rows)
        self._slots[item.row] = row.slot
        self._num_prompt_tokens[item.row] = row.num_prompt_tokens
        self._restricts[item.row] = row.restricts
        self._asks_for_tokens[item.row] = bool(row.sampling.logprob_token_ids)

    def _reserve(self, num_rows: int) -> None:
        added = num_rows - len(self._slots)
        if added > 0:
            self._slots = np.append(self._slots, np.full(added, -1))
            self._num_prompt_tokens = np.append(self._num_prompt_tokens, np.zeros(added, np.int64))
            self._restricts = np.append(self._restricts, np.zeros(added, np.bool_))
            self._asks_for_tokens = np.append(self._asks_for_tokens, np.zeros(added, np.bool_))

    def _restrict(self, restrictions: _Restrictions, draw: int, row: SamplingRow, num_tokens: int) -> None:
        """An error at one draw fails only that draw, and its request."""
        try:
            restrictions.add(draw, row, _forbidden_now(row, num_tokens))
        except Exception:
            logger.exception("could not work out the allowed tokens of draw %d of an iteration; that draw fails", draw)
            restrictions.allow(draw, self._mask(()))

    def _new_row(self, item: ScheduledSequence) -> SamplingRow:
        """Likewise: if an entry cannot be made, its draws fail."""
        try:
            return self._make_row(item)
        except Exception:
            logger.exception("the sampling parameters of sequence %d cannot be used; its draws fail", item.sequence_id)
            return SamplingRow(
                item.sampling, 0, -1, None, np.empty(0, np.int32), np.empty(0, np.float32), self._mask(())
            )

    def _make_row(self, item: ScheduledSequence) -> SamplingRow:
        sampling, past = item.sampling, item.past
        assert past is not None or not sampling.looks_back, "who looks back comes with its past"
        bias = dict(sampling.logit_bias)
        bias.update((word[0], -math.inf) for word in sampling.bad_words if len(word) == 1)
        row = SamplingRow(
            sampling,
            num_prompt_tokens=0 if past is None else past.num_prompt_tokens,
            slot=self._counts.take() if sampling.has_penalties else -1,
            output_ids=[] if sampling.needs_ids_on_host else None,
            bias_ids=np.fromiter(bias, np.int32, len(bias)),
            bias_values=np.fromiter(bias.values(), np.float32, len(bias)),
            mask=None if sampling.allowed_token_ids is None else self._mask(sampling.allowed_token_ids),
        )
        if past is not None and past.token_ids:
            if row.slot >= 0:
                self._note(row, 0, to_device({"": np.array(past.token_ids)}, self._device)[""])
            if row.output_ids is not None:
                row.output_ids += past.token_ids[row.num_prompt_tokens :]
        return row

    def _note(self, row: SamplingRow, position: int, token_ids: Tensor) -> None:
        """Count ids at `position` and after it."""
        border = max(0, row.num_prompt_tokens - position)
        if border > 0:
            self._counts.note_prompt(row.slot, token_ids[:border])
        if border < len(token_ids):
            self._counts.note_generated(row.slot, token_ids[border:])

    def _mask(self, allowed: tuple[int, ...]) -> Tensor:
        bits = np.zeros(-(-self._vocab_size // 32) * 32, dtype=np.uint8)
        bits[np.array(allowed, np.int64)] = 1
        return to_device({"": np.packbits(bits, bitorder="little").view(np.int32)}, self._device)[""]


class _Restrictions:
    """Collects biases and bitmasks of some of N draws."""

    def __init__(self, num_draws: int) -> None:
        self._num_draws = num_draws
        self._biases: list[tuple[int, Int32Array, npt.NDArray[np.float32]]] = []
        self._masks: dict[int, Tensor] = {}

    def add(self, draw: int, row: SamplingRow, forbidden: list[int]) -> None:
        """Add the restrictions of `row` for this draw. forbidden: further ids that it must not draw."""
        if row.mask is not None:
            self.allow(draw, row.mask)
        ids, values = row.bias_ids, row.bias_values
        if forbidden:
            kept = ~np.isin(ids, forbidden)
            ids = np.concatenate((ids[kept], np.array(forbidden, dtype=np.int32)))
            values = np.concatenate((values[kept], np.full(len(forbidden), -np.inf, dtype=np.float32)))
        if len(ids):
            self._biases.append((draw, ids, values))

    def allow(self, draw: int, mask: Tensor) -> None:
        """Allow only the tokens of the mask."""
        self._masks[draw] = mask

    def arrays(self) -> dict[str, Array]:
        """The arrays to copy to the device."""
        arrays: dict[str, Array] = {}
        if self._biases:
            arrays["bias_rows"] = np.concatenate([np.full(len(ids), draw, np.int32) for draw, ids, _ in self._biases])
            arrays["bias_ids"] = np.concatenate([ids for _, ids, _ in self._biases])
            arrays["bias_values"] = np.concatenate([values for *_, values in self._biases])
        if self._masks:
            arrays["mask_rows"] = np.full(self._num_draws, -1, np.int32)
            arrays["mask_rows"][[*self._masks]] = range(len(self._masks))
        return arrays

    def bitmasks(self, there: Mapping[str, Tensor]) -> tuple[TokenBitmask, ...]:
        """there: `arrays` on the device."""
        return (TokenBitmask(torch.stack([*self._masks.values()]), there["mask_rows"]),) if self._masks else ()


def _padded(rows: Sequence[tuple[int, ...]]) -> npt.NDArray[np.int64]:
    """[rows, longest], padded with token 0."""
    padded = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for at, row in enumerate(rows):
        padded[at, : len(row)] = row
    return padded


def _forbidden_now(row: SamplingRow, num_tokens: int) -> list[int]:
    """Ids that the next token must not be, given what the sequence has so far; no duplicates."""
    sampling = row.sampling
    forbidden: set[int] = set()
    if num_tokens - row.num_prompt_tokens < sampling.min_tokens:
        forbidden |= sampling.stop_token_ids
    if row.output_ids is not None:
        for word in sampling.bad_words:
            if 1 < len(word) <= len(row.output_ids) + 1 and tuple(row.output_ids[1 - len(word) :]) == word[:-1]:
                forbidden.add(word[-1])
    return sorted(forbidden)
