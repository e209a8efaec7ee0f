"""Ends answers where the trace says, without the scheduler knowing in advance.

Random weights never end an answer. ORCA's evaluation lets every request run to its limit. In PagedAttention's, answers
may be shorter than the limit that the system is given; that is where reserving the limit wastes memory.
"""

import dataclasses
from collections.abc import Callable

from service.core.iteration import IterationPlan, IterationResult
from service.engine.ports import Executor, PendingIteration

END_TOKEN_ID = 1


class PlannedEnds:
    """An executor that draws `END_TOKEN_ID` at the planned position, if there is one, and nowhere else.

    A sequence is known by its seed (choice i: seed + i), so seeds must be unique among requests.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._last_position: dict[int, int] = {}

    def plan_end(self, seed: int, num_tokens: int) -> None:
        """The sequence with this seed ends when it has `num_tokens` tokens, prompt included."""
        self._last_position[seed] = num_tokens - 1

    def launch(self, plan: IterationPlan) -> PendingIteration:
        """As the wrapped executor, except for the ids."""
        decodes = plan.decodes
        ends = (decodes.num_computed_tokens + decodes.num_new_tokens).tolist()
        draws = list(zip(decodes.seeds.tolist(), ends, strict=True))
        draws += [
            (sample.seed, item.num_computed_tokens + len(item.token_ids))
            for item in plan.scheduled
            for sample in item.samples
        ]
        return _WithPlannedEnds(self._executor.launch(plan), draws, self._token)

    def _token(self, seed: int, position: int, token_id: int) -> int:
        if position == self._last_position.get(seed):
            return END_TOKEN_ID
        return END_TOKEN_ID + 1 if token_id == END_TOKEN_ID else token_id


class _WithPlannedEnds:
    def __init__(
        self, pending: PendingIteration, draws: list[tuple[int, int]], token: Callable[[int, int, int], int]
    ) -> None:
        self._pending = pending
        self._draws = draws
        self._token = token

    def is_done(self) -> bool:
        return self._pending.is_done()

    def wait(self) -> IterationResult:
        result = self._pending.wait()
        drawn = zip(self._draws, result.token_ids, strict=True)
        token_ids = tuple(self._token(seed, position, token_id) for (seed, position), token_id in drawn)
        return dataclasses.replace(result, token_ids=token_ids)
