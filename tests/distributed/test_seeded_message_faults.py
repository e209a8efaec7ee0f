"""Faults of what ranks are told of plans, put in on purpose: each is caught by ranks that are told and compute alike.
Faults of messages as such (lost, twice, late) are in test_stages.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from service.core.iteration import NO_DECODES, NOTHING_GROWN, IterationPlan
from service.distributed import plan_codec
from service.distributed.plan_codec import PlanDecoder, PlanEncoder
from tests.distributed.test_told_executor import play

Patch = pytest.MonkeyPatch


def _told_without(patch: Patch, change: Callable[[IterationPlan], IterationPlan]) -> None:
    encode = PlanEncoder.encode
    patch.setattr(PlanEncoder, "encode", lambda self, plan: encode(self, change(plan)))


def decodes_not_told(patch: Patch) -> None:
    _told_without(patch, lambda plan: replace(plan, decodes=NO_DECODES))


def new_blocks_not_told(patch: Patch) -> None:
    def without(plan: IterationPlan) -> IterationPlan:
        return replace(plan, decodes=replace(plan.decodes, grown=NOTHING_GROWN)) if len(plan.decodes) else plan

    _told_without(patch, without)


def released_rows_not_told(patch: Patch) -> None:
    _told_without(patch, lambda plan: replace(plan, released=()))


def copies_not_told(patch: Patch) -> None:
    _told_without(patch, lambda plan: replace(plan, copies=()))


def draws_of_choices_told_once(patch: Patch) -> None:
    def first(plan: IterationPlan) -> IterationPlan:
        return replace(plan, scheduled=tuple(item._replace(samples=item.samples[:1]) for item in plan.scheduled))

    _told_without(patch, first)


def decodes_that_go_on_from_where_they_were(patch: Patch) -> None:
    read = PlanDecoder._read_decodes

    def not_advanced(self: PlanDecoder, *arguments: Any) -> Any:
        decodes = read(self, *arguments)
        self._memory.batches[decodes.version].next_tokens = decodes.num_computed_tokens
        return decodes

    patch.setattr(PlanDecoder, "_read_decodes", not_advanced)


def another_batch_believed_the_same(patch: Patch) -> None:
    flags = PlanEncoder._flags_of_decodes

    def of_any_known(self: PlanEncoder, decodes: Any, known: Any) -> int:
        some = next(iter(self._memory.batches.values()), None)
        return flags(self, decodes, known) | (plan_codec._SAME_MEMBERS if some is not None else 0)

    patch.setattr(PlanEncoder, "_flags_of_decodes", of_any_known)


def parameters_of_the_rows_last_request(patch: Patch) -> None:
    how = PlanEncoder._how_sampling

    def by_row(self: PlanEncoder, item: Any, last: Any) -> int:
        return plan_codec._SAMPLING_OF_ROW if item.row in self._memory.sampling else how(self, item, last)

    patch.setattr(PlanEncoder, "_how_sampling", by_row)
    patch.setattr(PlanEncoder, "_flags", _flags_that_keep_parameters(PlanEncoder._flags))


def _flags_that_keep_parameters(flags: Callable[..., int]) -> Callable[..., int]:
    """Of released rows no parameters are forgotten, on either side."""

    def kept(self: PlanEncoder, plan: IterationPlan, known: Any) -> int:
        return flags(self, replace(plan, released=()), known)

    return kept


def parameters_of_the_sequence_before(patch: Patch) -> None:
    how = PlanEncoder._how_sampling

    def of_last(self: PlanEncoder, item: Any, last: Any) -> int:
        return plan_codec._SAMPLING_OF_LAST if last is not None else how(self, item, last)

    patch.setattr(PlanEncoder, "_how_sampling", of_last)


def parameters_that_a_released_row_keeps_on_one_side(patch: Patch) -> None:
    read = PlanDecoder._read_sampling

    def forgotten(self: PlanDecoder, source: Any, how: int, row: int, last: Any) -> Any:
        sampling = read(self, source, how, row, last)
        if how == plan_codec._SAMPLING_OF_ROW:
            self._memory.sampling.pop(row)
            return read(self, source, how, row, last)
        return sampling

    patch.setattr(PlanDecoder, "_read_sampling", forgotten)


@pytest.mark.parametrize(
    "fault",
    [
        decodes_not_told,
        new_blocks_not_told,
        released_rows_not_told,
        copies_not_told,
        draws_of_choices_told_once,
        decodes_that_go_on_from_where_they_were,
        another_batch_believed_the_same,
        parameters_of_the_rows_last_request,
        parameters_of_the_sequence_before,
        parameters_that_a_released_row_keeps_on_one_side,
    ],
)
def test_a_fault_of_what_ranks_are_told_is_caught(fault: Callable[[Patch], None], monkeypatch: Patch):
    monkeypatch.setattr("tests.distributed.scene.PATIENCE_S", 1.0)
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        play(0)
