"""The end of a request, or of one of its choices: everything that it holds is freed."""

from __future__ import annotations

from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.forking import hand_over_lead
from service.scheduler.history import History
from service.scheduler.lanes import Lanes, LaunchedIterations
from service.scheduler.request_pool import RequestPool
from service.scheduler.speculation import DraftChoice


class GroupEnd:
    """Engine thread only. drafts: None if there is no speculation."""

    def __init__(
        self,
        blocks: BlockManager,
        pool: RequestPool,
        lanes: Lanes,
        launched: LaunchedIterations,
        drafts: DraftChoice | None,
        ledger: RecoveryLedger,
        history: History,
    ) -> None:
        self._blocks = blocks
        self._pool = pool
        self._lanes = lanes
        self._launched = launched
        self._drafts = drafts
        self._ledger = ledger
        self._history = history

    def cache_before_end(self, group: SequenceGroup, sequence: Sequence) -> None:
        """The sequence is about to end before its next result: offer its full blocks to the prefix cache."""
        self._lanes.write_tokens()
        if not group.num_preemptions:  # else some of its blocks may not be recomputed yet
            self._blocks.cache_decoded(sequence, group.request.prefix_salt)

    def end_sequence(self, group: SequenceGroup, sequence: Sequence) -> None:
        """Free what a live sequence holds, however it ended. `end_group` ends the last one."""
        sequence.drop_pending()
        if sequence is group.leader and len(group.live) > 1:
            hand_over_lead(group, self._blocks)
        self._launched.free(sequence)
        self._pool.remove_sequence(group, sequence)
        self._history.choice_ended(sequence.num_output_tokens)

    def end_group(self, group: SequenceGroup) -> None:
        """End all live sequences of the group, then the group. If this raises, it may be called again and continues
        where it stopped: all resources are freed, whatever is wrong with the request."""
        self._lanes.stop(group)
        for sequence in list(reversed(group.live)):
            self.end_sequence(group, sequence)
        if self._pool.get(group.request.request_id) is group:
            self._pool.remove(group)
            self._ledger.forget(group)
            if self._drafts is not None:
                self._drafts.forget(group)
            self._history.request_ended(group.request.client)
