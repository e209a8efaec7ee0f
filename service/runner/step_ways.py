"""Ways of computing a plan's step: each says whether it can, and the runner takes the first that does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from service.core.iteration import IterationPlan
from service.runner.device_copies import to_device
from service.runner.logprobs import DrawLogprobs, PromptLogprobs
from service.runner.pooling import PooledStates
from service.runner.selective_batching import FlatBatch, PlanColumns, flatten, plan_columns
from service.runner.sequence_rows import SequenceRows
from service.runner.staging import StagingTurn


class Step:
    """A plan that computes something, and what it was turned into so far: ways that are asked share it.

    turn: the iteration's; None on a CPU, where nothing is copied or timed. received: the hidden states of its tokens,
    from the stage before; None on the first one. all_deterministic: every step is.
    """

    def __init__(
        self,
        plan: IterationPlan,
        turn: StagingTurn | None,
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

    def begin(self, device: torch.device) -> dict[str, Tensor]:
        """The batch's arrays, on the device; all that is launched from now on is the step's."""
        if self.turn is not None:
            self.turn.begins()
        return to_device(self.batch.arrays(), device, self.turn)

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


class PendingTokenIds:
    """[N] int64 ids that are copied to the host; the first `num` of them count. turn: as Step has it. compute_s: once
    they are there, `StagingTurn.collect`'s seconds; None on a CPU."""

    def __init__(self, token_ids: Tensor, num: int, turn: StagingTurn | None = None) -> None:
        self.compute_s: float | None = None
        self._num = num
        self._turn: StagingTurn | None = None
        self._token_ids: tuple[int, ...] | Tensor = token_ids
        if turn is not None:
            turn.bring(token_ids if num else token_ids[:0])
            self._turn = turn

    def is_done(self) -> bool:
        """Whether they are there."""
        return self._turn is None or self._turn.is_done()

    def wait(self) -> tuple[int, ...]:
        """Idempotent."""
        if self._turn is not None:
            self._token_ids, self.compute_s = self._turn.collect(self._num)
            self._turn = None
        elif isinstance(self._token_ids, Tensor):
            self._token_ids = tuple(self._token_ids[: self._num].tolist())
        return self._token_ids


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
