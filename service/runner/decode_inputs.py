"""The inputs of a decode step at fixed places on the device, for a fixed number of rows."""

from __future__ import annotations

from torch import Tensor

from kernels.paged_attention_decode import decode_batch
from kernels.reshape_and_cache import cache_slots
from service.layers.attention import AttentionInputs
from service.runner.decode_rows import DecodeRows, empty_rows, first_rows, pad_into
from service.runner.device_block_table import pad_changes_into
from service.runner.sequence_rows import NO_CHANGES, TableChanges, empty_changes
from service.runner.staging import Array, FixedTensors
from service.runner.step_inputs import StepInputs
from service.sampling.sampler import SamplingBatch


class DecodeInputs:
    """Inputs of a step of at most `num_rows` decodes, with at most as many changes of the block table.

    block_table: DeviceBlockTable's tensor. table_places, table_values: what the step has to write to it first.
    What is filled in reaches the step by `fetch`, with which its graph begins.
    """

    def __init__(self, num_rows: int, block_table: Tensor, block_size: int) -> None:
        like: dict[str, Array] = {**empty_rows(num_rows)._asdict(), **empty_changes(num_rows)._asdict()}
        fixed = FixedTensors(like, block_table.device)
        decode = decode_batch(block_table, fixed["context_lens"], block_size, fixed["rows"])
        self.num_rows = num_rows
        self.most_changes = num_rows
        self.table_places, self.table_values = fixed["places"], fixed["values"]
        self._fixed = fixed
        host = fixed.writable()
        self._rows = DecodeRows(*map(host.__getitem__, DecodeRows._fields))
        self._changes = TableChanges(host["places"], host["values"])
        self._held = first_rows(self._rows, 0)
        self.step = StepInputs(
            token_ids=fixed["token_ids"],
            positions=fixed["positions"],
            decode_rows=fixed["rows"],
            attention=AttentionInputs(cache_slots(fixed["slots"], block_size), decode, None),
            draw_rows=fixed["rows"],
            sampling=SamplingBatch.of(fixed, is_greedy=False),
        )
        self.fetch = fixed.fetch
        self.fill(empty_rows(0))
        self.fetch()

    def fill(self, values: DecodeRows, changes: TableChanges = NO_CHANGES) -> None:
        """Set the inputs to at most `num_rows` rows; the rest becomes padding."""
        self._fixed.writable()
        pad_into(self._rows, values)
        self._held = first_rows(self._rows, len(values.rows))
        self.set_changes(changes)

    def held(self) -> DecodeRows:
        """The rows that were filled in, without padding, to be changed in place."""
        self._fixed.writable()
        return self._held

    def set_changes(self, changes: TableChanges) -> None:
        """Of the block table alone: after `held`."""
        pad_changes_into(self._changes, changes)
