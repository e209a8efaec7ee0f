"""A model whose next token is a hash of everything it reads through the block table, and its oracle.

The scheduler, block manager and engine around it are the real ones. A stale block, a wrong slot, an early free
or a mixed-up row changes what is read, and so gives a wrong token.
"""

from __future__ import annotations

import hashlib

from service.core.iteration_plan import IterationPlan, ScheduledSequence
from service.core.iteration_result import IterationResult

Cell = tuple[int, int]
"""What a slot holds: token id and position."""


def next_token(cells: list[Cell], seed: int, vocabulary: int) -> int:
    digest = hashlib.sha256(repr((cells, seed)).encode()).digest()
    return int.from_bytes(digest[:8], "big") % vocabulary


def oracle(prompt: tuple[int, ...], seed: int, max_tokens: int, stops: frozenset[int], vocabulary: int) -> list[int]:
    """The tokens that a request alone in the world gets."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < max_tokens:
        tokens.append(next_token([(t, p) for p, t in enumerate(tokens)], seed, vocabulary))
        if tokens[-1] in stops:
            break
    return tokens[len(prompt) :]


class ToyExecutor:
    """Carries plans out on a dictionary of slots, in the order that the plan promises."""

    def __init__(self, num_blocks: int, block_size: int, vocabulary: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocabulary = vocabulary
        self._slots: dict[int, Cell] = {}
        self.tables: dict[int, list[int]] = {}
        self.plans: list[IterationPlan] = []

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.plans.append(plan)
        for sequence_id in plan.released:
            self.tables.pop(sequence_id, None)
        for copy in plan.copies:
            for offset in range(self._block_size):
                source = self._slots.get(copy.source * self._block_size + offset)
                if source is not None:
                    self._slots[copy.destination * self._block_size + offset] = source
        for item in plan.scheduled:
            self._write(item)
        return IterationResult(
            tuple(
                next_token(self._read(item), sample.seed, self._vocabulary)
                for item in plan.scheduled
                for sample in item.samples
            )
        )

    def _write(self, item: ScheduledSequence) -> None:
        table = self.tables.setdefault(item.sequence_id, [])
        assert item.table_start <= len(table), "a table grows without gaps"
        table[item.table_start :] = item.block_ids if item.block_ids else table[item.table_start :]
        assert all(0 <= block_id < self._num_blocks for block_id in table)
        for position, token_id in enumerate(item.token_ids, item.num_computed_tokens):
            self._slots[self._slot(table, position)] = (token_id, position)

    def _read(self, item: ScheduledSequence) -> list[Cell]:
        table = self.tables[item.sequence_id]
        length = item.num_computed_tokens + len(item.token_ids)
        return [self._slots[self._slot(table, position)] for position in range(length)]

    def _slot(self, table: list[int], position: int) -> int:
        return table[position // self._block_size] * self._block_size + position % self._block_size
