"""Expands a plan to one ScheduledSequence per sequence, for executors that compute sequence by sequence."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from service.core.iteration import NO_DECODES, IterationPlan, ScheduledDecodes
from service.core.scheduled_sequence import PENDING_TOKEN_ID, Sample, ScheduledSequence


class PlanReader:
    """Remembers what plans tell only once about each row. It must read every plan, in order."""

    def __init__(self) -> None:
        self._last_in: dict[int, ScheduledSequence] = {}

    def expand(self, plan: IterationPlan) -> IterationPlan:
        """The same plan with its decodes as single sequences, before the others."""
        sequences = (*self._decodes(plan.decodes), *plan.scheduled)
        self._last_in.update((item.row, item) for item in sequences)
        return replace(plan, scheduled=sequences, decodes=NO_DECODES)

    def _decodes(self, decodes: ScheduledDecodes) -> Iterator[ScheduledSequence]:
        grown: dict[int, list[tuple[int, int]]] = {}
        for place, start, block_id in zip(*(column.tolist() for column in decodes.grown), strict=True):
            grown.setdefault(place, []).append((start, block_id))
        columns = (
            decodes.sequence_ids,
            decodes.rows,
            decodes.seeds,
            decodes.num_computed_tokens,
            decodes.num_new_tokens,
        )
        each = zip(*(column.tolist() for column in columns), strict=True)
        for place, (sequence_id, row, seed, num_computed, num_new) in enumerate(each):
            before = self._last_in[row]
            assert before.sequence_id == sequence_id, "a decode was scheduled by itself before"
            changes = grown.get(place, [])
            start = changes[0][0] if changes else 0
            assert [index for index, _ in changes] == list(range(start, start + len(changes))), "without gaps"
            blocks = tuple(block_id for _, block_id in changes)
            pending, draws = (PENDING_TOKEN_ID,) * num_new, (Sample(sequence_id, seed),)
            yield ScheduledSequence(
                sequence_id,
                row,
                pending,
                num_computed,
                start,
                blocks,
                before.sampling,
                draws,
                adapter_slot=before.adapter_slot,
            )
