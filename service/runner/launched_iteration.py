"""An iteration that is launched: what it computes is being copied to the host."""

from __future__ import annotations

from dataclasses import dataclass

from service.core.iteration_result import IterationResult
from service.runner.kv_transfer import KvTransfer
from service.runner.logprobs import DrawLogprobs, PromptLogprobs
from service.runner.pooling import PooledStates
from service.runner.staging import PendingTokenIds


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


class LaunchedIteration:
    """The engine's PendingIteration (service/engine/ports.py): outputs that the device may still be computing."""

    def __init__(self, outputs: Outputs, transfer: KvTransfer, *, awaits_transfer: bool) -> None:
        self._outputs = outputs
        self._transfer = transfer
        self._awaits_transfer = awaits_transfer

    def is_done(self) -> bool:
        token_ids = self._outputs.token_ids
        try:
            return token_ids is None or token_ids.is_done()
        except RuntimeError:  # the device's; `wait` has it too
            return True

    def wait(self) -> IterationResult:
        """The drawn ids, what else was asked for, and the transfers that have finished by then."""
        outputs, ids = self._outputs, self._outputs.token_ids
        try:
            return IterationResult(
                () if ids is None else ids.wait(),
                self._transfer.take_finished(self._awaits_transfer),
                () if outputs.logprobs is None else outputs.logprobs.wait(),
                () if outputs.prompt_logprobs is None else outputs.prompt_logprobs.wait(),
                () if outputs.pooled is None else outputs.pooled.wait(),
                outputs.is_replayed,
                outputs.compute_s if ids is None or outputs.compute_s is not None else ids.compute_s,
            )
        except BaseException:
            self._transfer.abandon()
            raise
