"""What the draws of an iteration may be, where grammars say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from service.core.grammar import Matcher, TokenMasker
from service.core.iteration import IterationPlan
from service.scheduler.request_pool import RequestPool


def with_masks(plan: IterationPlan, pool: RequestPool, masker: TokenMasker) -> IterationPlan:
    """The plan with its masks, which are computed beside the forward pass; as it was if no draw needs one.

    The choices that are drawn from one prompt all stand at the beginning of one grammar: they share a mask.
    """
    matchers: list[Matcher] = []
    rows = [-1] * len(plan.decodes)  # who has a grammar is not among them
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
    """Masks that could not be begun. Whoever waits for them has the fault, so the iteration fails as any other may."""

    fault: Exception
    rows: Sequence[int] = ()

    def wait(self) -> memoryview:
        raise self.fault
