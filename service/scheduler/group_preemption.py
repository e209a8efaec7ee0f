"""Preemption of a whole running group: swap it out to the host, or drop it and recompute it later (PagedAttention,
section 4.5: all-or-nothing)."""

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
    """Engine thread only; only while no iteration is in flight. A group preempted `max_preemptions` times is spared if
    another one can be taken, unless it is a background request."""

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
        """The group to preempt, chosen by the scheduling policy; background groups first. running: not empty."""
        background = [group for group in running if group.request.is_background]
        return self._policy.victim(background or may_be_preempted(running, self._max_preemptions))

    def preempt(self, group: SequenceGroup, draft: PlanDraft) -> None:
        """Take the group's device blocks. The caller must remove it from the running groups."""
        group.num_preemptions += 1
        group.journal.note_pause(draft.now_s)
        sequence_ids = [s.sequence_id for s in group.computing if self._blocks.has_table(s.sequence_id)]
        num_tokens, num_blocks = num_computed_tokens(group), self._blocks.num_distinct_blocks(sequence_ids)
        costs = self._ledger.predict(num_tokens, self._num_kept_tokens(group), num_blocks)
        is_whole = len(sequence_ids) == len(group.computing)  # else some choices wait for the shared prompt
        # With a sliding window of one token there may be no block to move.
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
        if group.num_preemptions == 1:  # else some of its blocks may not be recomputed yet
            self._let_be_found(group)
        for sequence in group.live:
            sequence.recompute_until = max(sequence.recompute_until, sequence.num_computed_tokens)
            sequence.num_computed_tokens = 0
            sequence.num_cached_blocks = 0
            sequence.top = None
            self._launched.free(sequence)

    def _let_be_found(self, group: SequenceGroup) -> None:
        """Offer its full blocks to the prefix cache, for others and for its own return. A fault only loses that."""
        try:
            for sequence in group.computing:
                self._blocks.cache_decoded(sequence, group.request.prefix_salt)
        except Exception:
            logger.exception(
                "the blocks of request %s could not be put into the prefix cache", group.request.request_id
            )

    def _num_kept_tokens(self, group: SequenceGroup) -> int:
        """Tokens in cached blocks that other groups hold, too: these will not have to be recomputed."""
        try:
            prefix = self._blocks.match_prefix(group.leader, group.request.prefix_salt)
        except Exception:
            logger.exception("the cached blocks of request %s could not be looked up", group.request.request_id)
            return 0
        return self._blocks.num_tokens_in(self._blocks.num_also_held_by_others(prefix, len(group.computing)))
