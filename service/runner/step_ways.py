"""Ways of computing a plan's step: each says whether it can, and the runner takes the first that does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from service.core.iteration_plan import IterationPlan
from service.runner.logprobs import DrawLogprobs, PromptLogprobs
from service.runner.pooling import PooledStates
from service.runner.selective_batching import FlatBatch, PlanColumns, flatten, plan_columns
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import PendingTokenIds, StagingTurn


class Step:
    """A plan that computes something, and what it was turned into so far: ways that are asked share it.

    turn: the iteration's. received: the hidden states of its tokens, from the stage before; None on the first one.
    all_deterministic: every step is.
    """

    def __init__(
        self,
        plan: IterationPlan,
        turn: StagingTurn,
        rows: SequenceRows,
        block_size: int,
        received: Tensor | None = None,
        *,
        all_deterministic: bool = False,
    ) -> None:
        self.plan = plan
        self.turn = turn
        self.received = received
        self._rows = rows
        self._block_size = block_size
        self._all_deterministic = all_deterministic

    @cached_property
    def columns(self) -> PlanColumns:
        """SequenceRows has taken over what the plan says has changed."""
        return plan_columns(self.plan, self._rows)

    @cached_property
    def batch(self) -> FlatBatch:
        return flatten(self.columns, self._rows, self._block_size)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the columns of every batch say all about the draws."""
        return self.plan.masks is None and not self._rows["asks_more"][self.columns.rows].any()

    @cached_property
    def has_adapters(self) -> bool:
        """Whether some sequence is computed with an adapter."""
        return "adapter_slots" in self._rows and bool(self._rows["adapter_slots"][self.columns.rows].any())

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether some sequence's bits are to be those that it has alone: then all are computed so."""
        return self._all_deterministic or bool(self._rows["deterministic"][self.columns.rows].any())

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether logprobs of a prompt are wanted, or hidden states."""
        return not self.batch.is_plain and any(item.targets or item.num_pooled for item in self.plan.scheduled)


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a batch computed, being copied to the host; None where there is nothing. `token_ids` arrive once the batch
    is computed, even if it drew nothing. is_replayed: as of IterationResult. compute_s: likewise, where the host has
    timed it."""

    token_ids: PendingTokenIds | None = None
    logprobs: DrawLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    pooled: PooledStates | None = None
    is_replayed: bool = False
    compute_s: float | None = None


class StepWay(Protocol):
    """One way of computing steps. Engine thread."""

    def takes(self, step: Step) -> bool:
        """Whether `compute` can compute this step, here and now."""
        ...

    def compute(self, step: Step) -> Outputs:
        """Launch it: a step that it `takes`."""
        ...
