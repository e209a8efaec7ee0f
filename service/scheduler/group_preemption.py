"""A running group gives its memory up, whole: moved to the host, or dropped and computed again later
(PagedAttention, section 4.5: all-or-nothing)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.prediction.preemption_cost import Recovery
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.lanes import LaunchedIterations
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.preemption import Preemption, may_be_preempted, num_computed_tokens
from service.scheduler.scheduling_policy import SchedulingPolicy

logger = logging.getLogger(__name__)


class GroupPreemption:
    """Engine thread only; while no iteration runs. One preempted `max_preemptions` times is spared, if it can be and is
    not in the background."""

    def __init__(
        self,
        blocks: BlockManager,
        policy: SchedulingPolicy,
        preemption: Preemption,
        ledger: RecoveryLedger,
        launched: LaunchedIterations,
        max_preemptions: int,
    ) -> None:
        self._blocks = blocks
        self._policy = policy
        self._preemption = preemption
        self._ledger = ledger
        self._launched = launched
        self._max_preemptions = max_preemptions

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        """The group that the scheduling policy would pause. running: at least one."""
        background = [group for group in running if group.request.is_background]
        return self._policy.victim(background or may_be_preempted(running, self._max_preemptions))

    def preempt(self, group: SequenceGroup, draft: PlanDraft) -> None:
        """Take the group's device blocks. The caller removes it from the running groups."""
        group.num_preemptions += 1
        group.journal.note_pause(draft.now_s)
        sequence_ids = [s.sequence_id for s in group.computing if self._blocks.has_table(s.sequence_id)]
        num_tokens, num_blocks = num_computed_tokens(group), self._blocks.num_distinct_blocks(sequence_ids)
        costs = self._ledger.predict(num_tokens, self._num_kept_tokens(group), num_blocks)
        is_whole = len(sequence_ids) == len(group.computing)  # else some have yet to share what is computed
        # Behind a window of one token there may be none to move.
        has_room = is_whole and 0 < num_blocks <= self._blocks.swap_space.num_free
        recovery = self._preemption.choose(group, costs) if has_room else Recovery.RECOMPUTE
        self._ledger.preempted(group, recovery, num_tokens, num_blocks, costs, draft.now_s)
        if recovery is Recovery.SWAP:
            self._swap_out(group, sequence_ids, draft)
        else:
            self._drop(group, draft)

    def _swap_out(self, group: SequenceGroup, sequence_ids: list[int], draft: PlanDraft) -> None:
        transfer = self._blocks.swap_out(sequence_ids)
        self._ledger.moves(group, transfer)
        draft.transfers.append(transfer)
        draft.tally.num_swapped += 1
        draft.tally.swapped_blocks += len(transfer.device_blocks)

    def _drop(self, group: SequenceGroup, draft: PlanDraft) -> None:
        draft.tally.num_dropped += 1
        if group.num_preemptions == 1:  # else it may just be computed again
            self._let_be_found(group)
        for sequence in group.live:
            sequence.recompute_until = max(sequence.recompute_until, sequence.num_computed_tokens)
            sequence.num_computed_tokens = 0
            sequence.num_cached_blocks = 0
            sequence.top = None
            self._launched.free(sequence)

    def _let_be_found(self, group: SequenceGroup) -> None:
        """Its full blocks may serve others, and itself when it returns. A fault costs no more than that."""
        try:
            for sequence in group.computing:
                self._blocks.cache_decoded(sequence, group.request.prefix_salt)
        except Exception:
            logger.exception("the blocks of request %s are not cached", group.request.request_id)

    def _num_kept_tokens(self, group: SequenceGroup) -> int:
        """Tokens that others use too and that the prefix cache knows: they need not be computed again."""
        try:
            prefix = self._blocks.match_prefix(group.leader, group.request.prefix_salt)
        except Exception:
            logger.exception("the cached blocks of request %s are not known", group.request.request_id)
            return 0
        return self._blocks.num_tokens_in(self._blocks.num_also_held_by_others(prefix, len(group.computing)))
