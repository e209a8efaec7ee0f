from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from service.core.iteration import INVALID_TOKEN_ID, IterationPlan, IterationResult
from service.core.layer_groups import TableGroups
from tests.engine.harness import VOCABULARY
from tests.engine.late_executor import LateIteration
from tests.engine.toy_model import ToyExecutor


class FaultyExecutor(ToyExecutor):
    """Raises in the given launches and waits; transfers in progress are then not reported, as service/engine/ports.py
    says. Returns no token for the sequences in `unlucky`, nor in place of `failing_ids`.

    An iteration whose wait fails has loaded no adapter and copied nothing.

    moving: asks the engine for the ids of sequences being transferred. users: for those that run with an adapter, by
    its id. holders: for those that have any of these blocks. hit: ids of sequences that a failure may have cost their
    data: those being transferred, those in a failed iteration, those with an adapter that it should have loaded, and
    those with blocks that it should have filled.
    """

    def __init__(
        self,
        failing_waits: frozenset[int],
        unlucky: frozenset[int] = frozenset(),
        failing_launches: frozenset[int] = frozenset(),
        num_blocks: int = 64,
        transfer_delay: int = 0,
        block_size: int = 4,
        failing_ids: frozenset[int] = frozenset(),
        vocabulary: int = VOCABULARY,
        window: int | None = None,
        groups: TableGroups | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, vocabulary, transfer_delay, window, groups)
        self.moving: Callable[[], list[int]] = list
        self.users: Callable[[int], list[int]] = lambda adapter_id: []
        self.holders: Callable[[set[int]], list[int]] = lambda block_ids: []
        self._num_abandoned = 0
        self._num_never_waited = 0
        self.failing_waits = failing_waits
        self.failing_launches = failing_launches
        self.unlucky = unlucky
        self.failing_ids = failing_ids
        self.num_launched = 0
        self.num_waited = 0
        self.hit: set[int] = set()

    def launch(self, plan: IterationPlan) -> LateIteration:
        self.num_launched += 1
        if self.num_launched in self.failing_launches:
            self._num_never_waited += 1
            self._fail(plan)
        return super().launch(plan)

    def execute(self, plan: IterationPlan) -> IterationResult:
        self.num_waited += 1
        if self.num_waited + self._num_never_waited <= self._num_abandoned:
            plan = replace(plan, transfers=())
        is_failing = self.num_waited in self.failing_waits
        try:
            result = super().execute(replace(plan, adapter_loads=(), copies=()) if is_failing else plan)
        except Exception:
            self._abandon(plan)
            raise
        if is_failing:
            self._fail(plan)
        drawing = [sample.sequence_id for item in plan.scheduled for sample in item.samples]
        pairs = zip(drawing, result.token_ids, strict=True)
        token_ids = tuple(
            INVALID_TOKEN_ID if i in self.unlucky or token_id in self.failing_ids else token_id for i, token_id in pairs
        )
        return replace(result, token_ids=token_ids)

    def _fail(self, plan: IterationPlan) -> None:
        self._abandon(plan)
        raise RuntimeError("out of luck")

    def _abandon(self, plan: IterationPlan) -> None:
        self.hit |= {item.sequence_id for item in plan.scheduled} | set(plan.decodes.sequence_ids.tolist())
        self.hit |= set(self.moving())
        self.hit.update(*(self.users(load.adapter_id) for load in plan.adapter_loads))
        self.hit.update(self.holders({copy.destination for copy in plan.copies}))
        self._in_flight.clear()
        self._num_abandoned = self.num_launched
