"""Which ids the draws of an iteration may give, where requests have grammars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.core.grammar import Matcher, TokenMasker
from service.core.iteration import IterationPlan
from service.scheduler.request_pool import RequestPool


def with_masks(plan: IterationPlan, pool: RequestPool, masker: TokenMasker) -> IterationPlan:
    """The plan with its token masks, which are computed beside the forward pass; the same plan if no draw needs a mask.
    If they cannot be started, the plan has FailedMasks."""
    try:
        return _with_started_masks(plan, pool, masker)
    except Exception as fault:
        return replace(plan, masks=FailedMasks(fault))


def _with_started_masks(plan: IterationPlan, pool: RequestPool, masker: TokenMasker) -> IterationPlan:
    """The choices drawn from one prompt are all at the start of the grammar, so they share one mask."""
    matchers: list[Matcher] = []
    rows = [-1] * len(plan.decodes)  # a request with a grammar is never in the decode batch
    for item in plan.scheduled:
        if not item.samples:
            continue
        member = pool.member(item.sequence_id)
        matcher = None if member is None else member[1].matcher
        if matcher is not None and matcher.allows_anything:
            matcher = None
        rows += [-1 if matcher is None else len(matchers)] * len(item.samples)
        if matcher is not None:
            matchers.append(matcher)
    return replace(plan, masks=masker.begin(matchers, rows)) if matchers else plan


@dataclass(frozen=True, slots=True)
class FailedMasks:
    """Stands for masks that could not be started. `wait` raises the fault, so that iteration fails like any other."""

    fault: Exception
    rows: Sequence[int] = ()

    def wait(self) -> memoryview:
        raise self.fault
