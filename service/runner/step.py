"""What one iteration computes: a plan's step, with what is derived from the plan, and its outputs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    """A plan that computes something, with the inputs derived from it so far. All ways that are asked share them.

    turn: the iteration's staging memory; None on a CPU, where nothing is copied or timed. received: the tokens' hidden
    states from the previous pipeline stage; None on the first stage. all_deterministic: every step `is_deterministic`.
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
        """Copy the batch's arrays to the device. The step's time starts here."""
        if self.turn is not None:
            self.turn.begins()
        return to_device(self.batch.arrays(), device, self.turn)

    @cached_property
    def columns(self) -> PlanColumns:
        """The plan's columns. Also applies the plan's changes to SequenceRows."""
        return plan_columns(self.plan, self._rows)

    @cached_property
    def batch(self) -> FlatBatch:
        return flatten(self.columns, self._rows, self._block_size)

    @cached_property
    def is_plain(self) -> bool:
        """Whether the columns of every batch are enough to draw: no grammar masks, no sequence that `asks_more`."""
        return self.plan.masks is None and not self._rows["asks_more"][self.columns.rows].any()

    @cached_property
    def has_adapters(self) -> bool:
        """Whether any sequence uses an adapter."""
        return "adapter_slots" in self._rows and bool(self._rows["adapter_slots"][self.columns.rows].any())

    @cached_property
    def is_deterministic(self) -> bool:
        """Whether any sequence must get the same bits as it would alone. Then all rows are computed that way."""
        return self._all_deterministic or bool(self._rows["deterministic"][self.columns.rows].any())

    @cached_property
    def reads_prompts(self) -> bool:
        """Whether prompt logprobs or pooled hidden states are wanted."""
        return not self.batch.is_plain and any(item.targets or item.num_pooled for item in self.plan.scheduled)


class PendingTokenIds:
    """[N] int64 token ids on their way to the host; the first `num` count. turn: as in Step. compute_s: once the ids
    have arrived, the step's seconds from `StagingTurn.collect`; None on a CPU."""

    def __init__(self, token_ids: Tensor, num: int, turn: StagingTurn | None = None) -> None:
        self.compute_s: float | None = None
        self._num = num
        self._turn: StagingTurn | None = None
        self._token_ids: tuple[int, ...] | Tensor = token_ids
        if turn is not None:
            turn.bring(token_ids if num else token_ids[:0])
            self._turn = turn

    def is_done(self) -> bool:
        """Whether the ids have arrived."""
        return self._turn is None or self._turn.is_done()

    def wait(self) -> tuple[int, ...]:
        """Wait for the ids and return them. Idempotent."""
        if self._turn is not None:
            self._token_ids, self.compute_s = self._turn.collect(self._num)
            self._turn = None
        elif isinstance(self._token_ids, Tensor):
            self._token_ids = tuple(self._token_ids[: self._num].tolist())
        return self._token_ids


@dataclass(frozen=True, slots=True)
class Outputs:
    """What a step computed, on its way to the host; None where there is nothing. `token_ids` complete once the step is
    computed, even if it drew none. is_replayed, compute_s: as in IterationResult; compute_s only where the host has
    timed the step."""

    token_ids: PendingTokenIds | None = None
    logprobs: DrawLogprobs | None = None
    prompt_logprobs: PromptLogprobs | None = None
    pooled: PooledStates | None = None
    is_replayed: bool = False
    compute_s: float | None = None
