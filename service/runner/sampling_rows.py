"""What the executor remembers of sequences whose draws need more than temperature, top-k and top-p.

The state is made of a sequence's ids: of its past when the executor first sees it, and of every id that it
computes from then on. An id is counted when it is computed, not when it is drawn: so a fork, a return from the host
and a recomputation need no care, and the last id may be known to the device alone.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.selective_batching import FlatBatch
from service.runner.staging import to_device
from service.sampling.logprobs import num_top_for
from service.sampling.sampler import LogitBias, Penalties, SamplingExtras, TokenBitmask
from service.sampling.token_counts import TokenCounts

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class SamplingRow:
    """One sequence.

    slot: of its token counts; -1 without penalties. output_ids: generated ids that are computed, if bad words of
    several tokens look back at them. bias_ids, bias_values: what is added to its logits at every draw.
    mask: words of a bitmask of its allowed tokens.
    """

    sampling: SamplingParams
    num_prompt_tokens: int
    slot: int
    output_ids: list[int] | None
    bias_ids: npt.NDArray[np.int32]
    bias_values: npt.NDArray[np.float32]
    mask: Tensor | None


class SamplingRows:
    """sequence_id -> SamplingRow, for those that ask for more. Engine thread."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._counts = TokenCounts(vocab_size, device)
        self._rows: dict[int, SamplingRow] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def release(self, sequence_id: int) -> None:
        """Forget the sequence; one that is not here is fine."""
        row = self._rows.pop(sequence_id, None)
        if row is not None and row.slot >= 0:
            self._counts.release(row.slot)

    def update(self, scheduled: Sequence[ScheduledSequence], batch: FlatBatch, token_ids: Tensor) -> None:
        """Take over new sequences, and the ids that the batch computes: token_ids [T] on the device."""
        slots, places = [], []
        for item, start in zip(scheduled, batch.token_starts.tolist(), strict=True):
            row = self._rows.get(item.sequence_id)
            if row is None:
                if item.sampling.is_plain:
                    continue
                row = self._rows[item.sequence_id] = self._new_row(item)
            if row.output_ids is not None:
                skipped = max(0, row.num_prompt_tokens - item.num_computed_tokens)
                row.output_ids += item.token_ids[skipped:]
            if row.slot < 0:
                continue
            if len(item.token_ids) == 1 and item.num_computed_tokens >= row.num_prompt_tokens:
                slots.append(row.slot)
                places.append(start)
            else:
                self._note(row, item.num_computed_tokens, token_ids[start : start + len(item.token_ids)])
        if slots:
            arrays = {"slots": np.array(slots, dtype=np.int32), "places": np.array(places)}
            there = to_device(arrays, self._device)
            self._counts.note_one_each(there["slots"], token_ids.index_select(0, there["places"]))

    def extras(self, scheduled: Sequence[ScheduledSequence]) -> tuple[SamplingExtras, list[int | None]]:
        """What the draws ask for, and the number of top logprobs that each wants. After `update`."""
        draft = _Draft(sum(len(item.samples) for item in scheduled))
        index = 0
        for item in scheduled:
            row = self._rows.get(item.sequence_id)
            for _ in item.samples:
                if row is not None:
                    self._add(draft, index, row, item)
                index += 1
        return draft.extras(self._counts, self._vocab_size, self._device), draft.asked

    def _add(self, draft: _Draft, index: int, row: SamplingRow, item: ScheduledSequence) -> None:
        """A fault at one draw fails that draw, and with it its request alone."""
        try:
            draft.add(index, row, item.num_computed_tokens + len(item.token_ids))
        except Exception:
            logger.exception("what a draw of sequence %d may be is not known", item.sequence_id)
            draft.forbid(index, self._mask(()))

    def _new_row(self, item: ScheduledSequence) -> SamplingRow:
        """Likewise: of a row that cannot be made nothing may be drawn."""
        try:
            return self._make_row(item)
        except Exception:
            logger.exception("the sampling parameters of sequence %d cannot be used", item.sequence_id)
            none = np.empty(0)
            return SamplingRow(
                item.sampling, 0, -1, None, none.astype(np.int32), none.astype(np.float32), self._mask(())
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
                self._note(row, 0, self._to_device(np.array(past.token_ids)))
            if row.output_ids is not None:
                row.output_ids += past.token_ids[row.num_prompt_tokens :]
        return row

    def _note(self, row: SamplingRow, position: int, token_ids: Tensor) -> None:
        """Count ids that stand at `position` and after it."""
        border = max(0, row.num_prompt_tokens - position)
        if border > 0:
            self._counts.note_prompt(row.slot, token_ids[:border])
        if border < len(token_ids):
            self._counts.note_generated(row.slot, token_ids[border:])

    def _mask(self, allowed: tuple[int, ...]) -> Tensor:
        bits = np.zeros(-(-self._vocab_size // 32) * 32, dtype=np.uint8)
        bits[np.array(allowed, np.int64)] = 1
        return self._to_device(np.packbits(bits, bitorder="little").view(np.int32))

    def _to_device(self, array: npt.NDArray[Any]) -> Tensor:
        return to_device({"": array}, self._device)[""]


class _Draft:
    """The extras of N draws in the making."""

    def __init__(self, num_draws: int) -> None:
        self.asked: list[int | None] = [None] * num_draws
        self._slots = np.full(num_draws, -1, dtype=np.int32)
        self._repetition = np.ones(num_draws, dtype=np.float32)
        self._presence = np.zeros(num_draws, dtype=np.float32)
        self._frequency = np.zeros(num_draws, dtype=np.float32)
        self._min_p = np.zeros(num_draws, dtype=np.float32)
        self._biases: list[tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]] = []
        self._mask_rows = np.full(num_draws, -1, dtype=np.int32)
        self._masks: list[Tensor] = []

    def add(self, index: int, row: SamplingRow, num_tokens: int) -> None:
        """Draw `index` is the row's. num_tokens: of its sequence, before the draw."""
        sampling = row.sampling
        self.asked[index] = sampling.num_logprobs
        if row.slot >= 0:
            self._slots[index] = row.slot
            self._repetition[index] = sampling.repetition_penalty
            self._presence[index] = sampling.presence_penalty
            self._frequency[index] = sampling.frequency_penalty
        if sampling.min_p:
            self._min_p[index] = sampling.min_p
        if row.mask is not None:
            self._allow(index, row.mask)
        forbidden = _forbidden_now(row, num_tokens)
        ids, values = row.bias_ids, row.bias_values
        if forbidden:
            kept = ~np.isin(ids, forbidden)
            ids = np.concatenate((ids[kept], np.array(forbidden, dtype=np.int32)))
            values = np.concatenate((values[kept], np.full(len(forbidden), -np.inf, dtype=np.float32)))
        if len(ids):
            self._biases.append((index, ids, values))

    def forbid(self, index: int, nothing: Tensor) -> None:
        """Draw `index` comes to nothing. nothing: the mask that says so."""
        self._allow(index, nothing)

    def _allow(self, index: int, mask: Tensor) -> None:
        self._mask_rows[index] = len(self._masks)
        self._masks.append(mask)

    def extras(self, counts: TokenCounts, vocab_size: int, device: torch.device) -> SamplingExtras:
        asked = [num for num in self.asked if num is not None]
        there = to_device(self._arrays(), device)
        penalties = bias = None
        if "slots" in there:
            names = ("slots", "repetition", "presence", "frequency")
            penalties = Penalties(counts.table, *(there[name] for name in names))
        if "bias_rows" in there:
            bias = LogitBias(there["bias_rows"], there["bias_ids"], there["bias_values"])
        bitmasks = (TokenBitmask(torch.stack(self._masks), there["mask_rows"]),) if self._masks else ()
        return SamplingExtras(
            penalties, bias, bitmasks, there.get("min_p"), num_top_for(max(asked), vocab_size) if asked else None
        )

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """What must go to the device."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        if (self._slots >= 0).any():
            arrays |= {
                "slots": self._slots,
                "repetition": self._repetition,
                "presence": self._presence,
                "frequency": self._frequency,
            }
        if self._biases:
            rows = [np.full(len(ids), index, dtype=np.int32) for index, ids, _ in self._biases]
            arrays["bias_rows"] = np.concatenate(rows)
            arrays["bias_ids"] = np.concatenate([ids for _, ids, _ in self._biases])
            arrays["bias_values"] = np.concatenate([values for *_, values in self._biases])
        if self._masks:
            arrays["mask_rows"] = self._mask_rows
        if self._min_p.any():
            arrays["min_p"] = self._min_p
        return arrays


def _forbidden_now(row: SamplingRow, num_tokens: int) -> list[int]:
    """Ids that the next token must not be, by where the sequence stands; none twice."""
    sampling = row.sampling
    forbidden: set[int] = set()
    if num_tokens - row.num_prompt_tokens < sampling.min_tokens:
        forbidden |= sampling.stop_token_ids
    if row.output_ids is not None:
        for word in sampling.bad_words:
            if 1 < len(word) <= len(row.output_ids) + 1 and tuple(row.output_ids[1 - len(word) :]) == word[:-1]:
                forbidden.add(word[-1])
    return sorted(forbidden)
