"""Faults put into the decode batch on purpose: its columns, its members, and what a plan says of both. Each is caught
by the oracle, the executor or an invariant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from service.core.iteration import GrownTables
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler import decode_batch
from service.scheduler.decode_batch import END, LAST, NUM_NEW, NUM_TOLD, ROOM, ROW, SEED, DecodeBatch, DecodeMembers
from tests.engine.harness import Harness

Patch = pytest.MonkeyPatch


def scenario(overlap: bool, num_lanes: int = 1) -> None:
    """Decodes that come and go beside prompt chunks: some stop at an id, one is aborted, one is stopped, and all cross
    block borders."""
    harness = Harness(80, 4, 9, 12, overlap=overlap, num_lanes=num_lanes)
    stops = frozenset(range(0, 1000, 9))
    for number in range(8):
        prompt = tuple(range(number, 4 * number + 2))
        of_some = stops if number % 3 == 1 else frozenset[int]()
        assert harness.add(harness.request(prompt, 9 + 4 * number, seed=number, stops=of_some))
        for _ in range(number % 4):
            harness.step()
    for _ in range(5):
        harness.step()
    assert any(len(batch) > 1 for batch in harness.scheduler.lanes)
    harness.engine.requests.abort("request-6")
    harness.step()
    harness.engine.requests.stop_choice("request-5", 0)
    harness.run(max_steps=300)
    told = {stats.max_tokens: stats.num_output_tokens for stats, _, _ in harness.sink.requests}
    for number, request_id in enumerate(harness.requests):
        harness.check_against_oracle(request_id, complete=number not in (5, 6))
        assert told[9 + 4 * number] == len(harness.tokens[request_id, 0])
    harness.check_nothing_left()


@pytest.mark.parametrize(("overlap", "num_lanes"), [(False, 1), (True, 1), (False, 2)])
def test_without_a_fault_the_scenario_passes(overlap: bool, num_lanes: int):
    scenario(overlap, num_lanes)


def _joins_with(patch: Patch, column: int, change: int) -> None:
    """The last joining sequence gets another number in this column."""

    def changed(self: DecodeBatch, groups: list[SequenceGroup]) -> None:
        join(self, groups)
        if groups:
            self._columns[column, -1] += change

    join = DecodeBatch.join
    patch.setattr(DecodeBatch, "join", changed)


def a_row_of_another(patch: Patch) -> None:
    _joins_with(patch, ROW, 1)


def a_seed_of_another(patch: Patch) -> None:
    _joins_with(patch, SEED, 1)


def a_last_token_too_late(patch: Patch) -> None:
    _joins_with(patch, LAST, 1)


def a_last_token_too_early(patch: Patch) -> None:
    _joins_with(patch, LAST, -1)


def a_token_counted_twice(patch: Patch) -> None:
    _joins_with(patch, NUM_TOLD, -1)


def a_position_left_out(patch: Patch) -> None:
    _joins_with(patch, END, 1)


def room_for_a_token_too_many(patch: Patch) -> None:
    _joins_with(patch, ROOM, 1)


def tokens_computed_twice(patch: Patch) -> None:
    def not_counted(self: DecodeBatch, number: int, shortage: np.ndarray) -> object:
        advanced = advance(self, number, shortage)
        self._columns[END] -= self._columns[NUM_NEW]
        return advanced

    advance = DecodeBatch.advance
    patch.setattr(DecodeBatch, "advance", not_counted)


def who_has_left_is_computed_on(patch: Patch) -> None:
    patch.setattr(DecodeBatch, "_drop_left", lambda self: None)


def a_version_kept_though_one_has_left(patch: Patch) -> None:
    drop = DecodeBatch._drop_left

    def of_the_same_version(self: DecodeBatch) -> None:
        version = self._version
        drop(self)
        self._version = version

    patch.setattr(DecodeBatch, "_drop_left", of_the_same_version)


def a_version_kept_though_one_has_joined(patch: Patch) -> None:
    join = DecodeBatch.join

    def of_the_same_version(self: DecodeBatch, groups: list[SequenceGroup]) -> None:
        version = self._version
        join(self, groups)
        self._version = version

    patch.setattr(DecodeBatch, "join", of_the_same_version)


def new_blocks_of_another(patch: Patch) -> None:
    grow = DecodeBatch._grow

    def to_the_next(self: DecodeBatch, places: np.ndarray) -> GrownTables:
        grown = grow(self, places)
        return grown._replace(places=(grown.places + 1) % self._columns.shape[1])

    patch.setattr(DecodeBatch, "_grow", to_the_next)


def a_new_block_at_the_wrong_place_of_its_table(patch: Patch) -> None:
    grow = DecodeBatch._grow

    def one_too_early(self: DecodeBatch, places: np.ndarray) -> GrownTables:
        grown = grow(self, places)
        return grown._replace(table_starts=grown.table_starts - 1)

    patch.setattr(DecodeBatch, "_grow", one_too_early)


def a_new_block_not_told(patch: Patch) -> None:
    grow = DecodeBatch._grow

    def untold(self: DecodeBatch, places: np.ndarray) -> GrownTables:
        grow(self, places)
        return decode_batch.NOTHING_GROWN

    patch.setattr(DecodeBatch, "_grow", untold)


def ids_written_to_the_next_member(patch: Patch) -> None:
    keep, write = DecodeMembers.keep, DecodeMembers.write

    def rotated(token_ids: tuple[int, ...]) -> tuple[int, ...]:
        return (*token_ids[1:], *token_ids[:1])

    patch.setattr(DecodeMembers, "keep", lambda self, token_ids: keep(self, rotated(token_ids)))
    patch.setattr(DecodeMembers, "write", lambda self, token_ids: write(self, rotated(token_ids)))


def kept_ids_lost_when_one_joins(patch: Patch) -> None:
    patch.setattr(Harness, "check", lambda self: None)  # which looks at all tokens, so that none are kept
    copy = DecodeMembers._copy

    def without(self: DecodeMembers) -> DecodeMembers:
        self._rows = []
        return copy(self)

    patch.setattr(DecodeMembers, "_copy", without)


def ids_written_to_who_has_left(patch: Patch) -> None:
    def as_a_member(self: DecodeMembers, number: int) -> None:
        place = self.place_of(number)
        if place is not None:
            self.left[place] = self.groups[place]

    patch.setattr(DecodeMembers, "leave", as_a_member)


def members_of_a_launched_iteration_changed(patch: Patch) -> None:
    patch.setattr(DecodeMembers, "_copy", lambda self: self.write_kept() or self)


def ids_that_end_a_request_overlooked(patch: Patch) -> None:
    patch.setattr(decode_batch, "_watched_ids", lambda group: frozenset())


def a_row_not_released(patch: Patch) -> None:
    patch.setattr(BlockManager, "take_released_rows", lambda self: self.released_rows.clear() or ())


def a_number_of_tokens_that_is_not_the_columns(patch: Patch) -> None:
    advance = DecodeBatch.advance

    def one_less(self: DecodeBatch, number: int, shortage: np.ndarray) -> object:
        advanced = advance(self, number, shortage)
        return advanced and (advanced[0], replace(advanced[1], num_tokens=advanced[1].num_tokens - 1))

    patch.setattr(DecodeBatch, "advance", one_less)


FAULTS = [
    a_row_of_another,
    a_seed_of_another,
    a_last_token_too_late,
    a_last_token_too_early,
    a_token_counted_twice,
    a_position_left_out,
    room_for_a_token_too_many,
    tokens_computed_twice,
    who_has_left_is_computed_on,
    a_version_kept_though_one_has_left,
    a_version_kept_though_one_has_joined,
    new_blocks_of_another,
    a_new_block_at_the_wrong_place_of_its_table,
    a_new_block_not_told,
    ids_written_to_the_next_member,
    kept_ids_lost_when_one_joins,
    ids_written_to_who_has_left,
    members_of_a_launched_iteration_changed,
    ids_that_end_a_request_overlooked,
    a_row_not_released,
    a_number_of_tokens_that_is_not_the_columns,
]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_caught(fault: Callable[[Patch], None], overlap: bool, monkeypatch: Patch):
    fault(monkeypatch)
    with pytest.raises((AssertionError, LookupError, ValueError)):
        scenario(overlap)
