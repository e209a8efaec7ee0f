"""Faults of what a plan becomes before it is computed, put in on purpose: of the batch's columns, what is remembered in
rows, and the ways of computing a step. Each changes what is drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.core.sampling_params import SamplingParams
from service.runner import graph_inputs, graph_ways, selective_batching
from service.runner import step as step_module
from service.runner.batch_columns import Array, Column
from service.runner.cuda_graphs import StepGraphs
from service.runner.drawn_ids import DrawnIds
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize
from service.runner.graph_ways import DecodeGraph
from service.runner.sampling_rows import SamplingRows
from service.runner.sequence_rows import NO_CHANGES, DeviceBlockTable, SequenceRows
from service.runner.step import Step
from tests.models.checkpoints import llama, random_prompts
from tests.runner import uncaptured
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer

Patch = pytest.MonkeyPatch
PROMPTS = random_prompts(12)
SIZES = [GraphSize(4, 4), GraphSize(8, 8), GraphSize(64, 8)]


def random_params() -> list[SamplingParams]:
    chance = random.Random(5)
    return [
        SamplingParams(
            max_tokens=chance.randint(4, 24),
            temperature=chance.choice([0.0, 0.7, 1.3]),
            top_p=chance.choice([1.0, 0.9]),
            top_k=chance.choice([0, 20]),
            seed=chance.randrange(2**62),
            min_p=0.3 if number % 4 == 3 else 0.0,
            logit_bias=((7, 30.0),) if number % 6 == 5 else (),
        )
        for number in range(len(PROMPTS))
    ]


def drawn(folder: Path, *, graphs: bool) -> list[list[int]]:
    """Of requests that come as others end: chunks of prompts beside decodes, decodes alone, rows that serve another.
    graphs: of steps that are all but captured."""
    with pytest.MonkeyPatch.context() as patch:
        uncaptured.without_capture(patch)
        loaded = load(folder, max_num_seqs=8, block_size=4, enforce_eager=not graphs)
        if graphs:
            loaded.runner.replays.capture(SIZES)
        player = PlanPlayer(loaded.runner, 300, 4)
        first = player.generate(PROMPTS, random_params(), chunk=31, max_seqs=6)
        return first + player.generate(PROMPTS[:3], random_params()[:3], chunk=31)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return llama(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def want(folder: Path) -> list[list[int]]:
    return drawn(folder, graphs=False)


def test_without_a_fault_graphs_draw_the_same(folder: Path, want: list[list[int]]):
    assert drawn(folder, graphs=True) == want


def _other_columns(patch: Patch, name: str, change: Callable[[Array], Array]) -> None:
    """Of decodes alone."""
    plain = selective_batching.decode_columns

    def changed(*arguments: Any) -> dict[str, Array]:
        columns = plain(*arguments)
        return {**columns, name: change(columns[name]).astype(columns[name].dtype)}

    patch.setattr(graph_ways, "decode_columns", changed)


def a_context_one_token_short(patch: Patch) -> None:
    _other_columns(patch, "decode_context_lens", lambda column: column - 1)


def a_seed_of_another(patch: Patch) -> None:
    _other_columns(patch, "seeds", lambda column: np.roll(column, 1))


def a_position_of_another(patch: Patch) -> None:
    _other_columns(patch, "positions", lambda column: column + 1)


def a_draw_at_another_position(patch: Patch) -> None:
    _other_columns(patch, "sample_positions", lambda column: column + 1)


def keys_written_to_another_slot(patch: Patch) -> None:
    _other_columns(patch, "slot_mapping", lambda column: np.roll(column, 1))


def rows_of_others(patch: Patch) -> None:
    _other_columns(patch, "decode_rows", lambda column: np.roll(column, 1))


def a_temperature_of_another(patch: Patch) -> None:
    _other_columns(patch, "temperature", lambda column: np.roll(column, 1))


def padding_that_writes(patch: Patch) -> None:
    """To the first slots, which are somebody's."""
    padded = Column.padded
    patch.setattr(
        Column, "padded", lambda self, num: np.arange(num) if self.name == "slot_mapping" else padded(self, num)
    )


def a_table_that_graphs_are_not_told_of(patch: Patch) -> None:
    patch.setattr(DeviceBlockTable, "take_changes", lambda self, most: NO_CHANGES)


def decodes_again_that_do_not_cross_into_a_new_block(patch: Patch) -> None:
    def within_a_block(held: dict[str, Array], rows: SequenceRows, block_size: int) -> None:
        for name in ("positions", *rows.columns.slots, "decode_context_lens", "sample_positions"):
            held[name] += 1

    patch.setattr(graph_inputs, "advance", within_a_block)


def decodes_again_without_their_new_blocks(patch: Patch) -> None:
    again = StepGraphs.replay_again

    def ungrown(self: StepGraphs, *arguments: Any) -> object:
        with pytest.MonkeyPatch.context() as inside:
            inside.setattr(SequenceRows, "grow_tables", lambda self, decodes: None)
            return again(self, *arguments)

    patch.setattr(StepGraphs, "replay_again", ungrown)


def decodes_again_a_token_late(patch: Patch) -> None:
    """Though something has come between."""
    patch.setattr(graph_inputs, "can_advance", lambda held, decodes: True)
    replay = DecodeGraph.replay
    patch.setattr(
        DecodeGraph, "replay", lambda self, step, version=None: replay(self, step, step.plan.decodes.version or None)
    )


def more_asked_of_a_draw_than_its_graph_has(patch: Patch) -> None:
    patch.setattr(Step, "is_plain", True)


def a_mixed_steps_draws_one_token_early(patch: Patch) -> None:
    fill = GraphInputs.fill

    def early(self: GraphInputs, batch: selective_batching.FlatBatch, *changes: Any) -> None:
        object.__setattr__(batch, "logit_rows", np.maximum(0, batch.logit_rows - 1))
        fill(self, batch, *changes)

    patch.setattr(GraphInputs, "fill", early)


def a_mixed_steps_border_one_too_far(patch: Patch) -> None:
    fill = GraphInputs.fill

    def further(self: GraphInputs, batch: selective_batching.FlatBatch, *changes: Any) -> None:
        object.__setattr__(batch, "num_decode", max(0, batch.num_decode - 1))
        batch.query_starts[batch.num_decode + 1 :] -= 1
        fill(self, batch, *changes)

    patch.setattr(GraphInputs, "fill", further)


def ids_not_noted_by_a_graph(patch: Patch) -> None:
    patch.setattr(DrawnIds, "note", lambda self, rows, token_ids: None)


@pytest.mark.parametrize(
    "fault",
    [
        a_context_one_token_short,
        a_seed_of_another,
        a_position_of_another,
        a_draw_at_another_position,
        keys_written_to_another_slot,
        rows_of_others,
        a_temperature_of_another,
        padding_that_writes,
        a_table_that_graphs_are_not_told_of,
        decodes_again_that_do_not_cross_into_a_new_block,
        decodes_again_without_their_new_blocks,
        decodes_again_a_token_late,
        more_asked_of_a_draw_than_its_graph_has,
        a_mixed_steps_draws_one_token_early,
        a_mixed_steps_border_one_too_far,
        ids_not_noted_by_a_graph,
    ],
)
def test_a_fault_of_graphs_is_caught(
    fault: Callable[[Patch], None], folder: Path, want: list[list[int]], monkeypatch: Patch
):
    fault(monkeypatch)
    check_caught(folder, want, graphs=True)


def parameters_of_the_rows_last_sequence(patch: Patch) -> None:
    remember, known = SequenceRows.remember, set[int]()

    def once(self: SequenceRows, scheduled: list) -> None:
        remember(self, [item for item in scheduled if item.row not in known])
        known.update(item.row for item in scheduled)

    patch.setattr(SequenceRows, "remember", once)


def blocks_written_to_the_next_row(patch: Patch) -> None:
    write = SequenceRows.write_blocks
    patch.setattr(
        SequenceRows,
        "write_blocks",
        lambda self, rows, indexes, block_ids: write(self, rows % 6 + 1, indexes, block_ids),
    )


def blocks_written_one_place_behind(patch: Patch) -> None:
    write = SequenceRows.write_blocks
    patch.setattr(
        SequenceRows, "write_blocks", lambda self, rows, indexes, block_ids: write(self, rows, indexes + 1, block_ids)
    )


def ids_filled_in_from_another_row(patch: Patch) -> None:
    fill_in = DrawnIds.fill_in
    patch.setattr(DrawnIds, "fill_in", lambda self, token_ids, rows: fill_in(self, token_ids, rows.roll(1)))


def draws_in_the_flat_batchs_order(patch: Patch) -> None:
    flatten = selective_batching.flatten

    def as_they_stand(*arguments: Any) -> selective_batching.FlatBatch:
        batch = flatten(*arguments)
        object.__setattr__(batch, "logit_rows", np.sort(batch.logit_rows))
        return batch

    patch.setattr(step_module, "flatten", as_they_stand)


def what_a_row_asked_kept_for_the_next(patch: Patch) -> None:
    take_over = SamplingRows._take_over

    def unless_known(self: SamplingRows, item: Any) -> None:
        if item.row not in self._rows:
            take_over(self, item)

    patch.setattr(SamplingRows, "release", lambda self, row: None)
    patch.setattr(SamplingRows, "_take_over", unless_known)


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "graphs"])
@pytest.mark.parametrize(
    "fault",
    [
        parameters_of_the_rows_last_sequence,
        blocks_written_to_the_next_row,
        blocks_written_one_place_behind,
        ids_filled_in_from_another_row,
        draws_in_the_flat_batchs_order,
        what_a_row_asked_kept_for_the_next,
    ],
)
def test_a_fault_of_any_way_is_caught(
    fault: Callable[[Patch], None], graphs: bool, folder: Path, want: list[list[int]], monkeypatch: Patch
):
    fault(monkeypatch)
    check_caught(folder, want, graphs=graphs)


def check_caught(folder: Path, want: list[list[int]], *, graphs: bool) -> None:
    """By what is drawn, or at once."""
    try:
        got = drawn(folder, graphs=graphs)
    except (AssertionError, LookupError, ValueError, RuntimeError):
        return
    assert got != want
