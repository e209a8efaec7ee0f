"""Decides an iteration in full, group by group: prompt chunks, admissions, several choices, preemptions. It could
decide every iteration; the fast path in `IterationScheduler` must give the same result."""

from __future__ import annotations

from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.core.sequence import Sequence
from service.core.sequence_group import SequenceGroup
from service.kvcache.block_manager import BlockManager
from service.scheduler.background_chunks import BackgroundChunks
from service.scheduler.block_growth import BlockGrowth, Shortage
from service.scheduler.chunk_budget import ChunkBudget
from service.scheduler.forking import share_prompt
from service.scheduler.group_preemption import GroupPreemption
from service.scheduler.group_start import GroupStart
from service.scheduler.lanes import Lanes, LaunchedIterations
from service.scheduler.plan_draft import PlanDraft
from service.scheduler.request_pool import RequestPool
from service.scheduler.speculation import DraftChoice


class LaneScheduling:
    """Engine thread only. Each iteration:

    1. Blocks. If the running groups cannot all get blocks for their next token, the policy's victim is preempted as a
       whole, to be swapped in or recomputed later (PagedAttention, section 4.5). A background group is also preempted
       if another request lacks a sequence or memory. Adapters that no running group uses are evicted before that.
       Blocks being swapped out are not free yet, and a group being swapped in cannot be preempted; groups that need
       these blocks skip the iteration.
    2. Running sequences that decode get their one token.
    3. The chunk budget goes to running prompts, in order of start, cut into chunks.
    4. Waiting requests are admitted in the policy's order, while budget, sequences and memory last.
    5. Background prompts come last, and get few tokens while there are other requests.

    The budget exceeds the number of sequences, so the first prompt always advances.

    drafts: None if there is no speculation.
    """

    def __init__(
        self,
        blocks: BlockManager,
        pool: RequestPool,
        lanes: Lanes,
        launched: LaunchedIterations,
        growth: BlockGrowth,
        preemption: GroupPreemption,
        start: GroupStart,
        chunk_budget: ChunkBudget,
        background_chunks: BackgroundChunks,
        drafts: DraftChoice | None,
    ) -> None:
        self._blocks = blocks
        self._pool = pool
        self._lanes = lanes
        self._launched = launched
        self._growth = growth
        self._preemption = preemption
        self._start = start
        self._chunk_budget = chunk_budget
        self._background_chunks = background_chunks
        self._drafts = drafts

    def decide(self, draft: PlanDraft, shortage: Shortage) -> bool:
        """Decide the current lane's iteration. False if none of its groups can run and none is admitted. shortage: what
        `BlockGrowth.shortage` says now."""
        gives_way = self.background_is_in_the_way
        has_preempted = self._make_room(shortage, draft)
        giving_way = self._schedule_unbatched(draft)
        lacks_memory = has_preempted or bool(draft.sitting_out)
        if self._pool.waiting and (lacks_memory or not self._growth.leaves_room_elsewhere):
            self._start.let_wait("memory")
        elif self._pool.waiting:
            self._lanes.write_tokens()  # admission policies may look at running groups
            self._start.admit(draft, without_background=gives_way)
        self._add_chunks(giving_way, draft)
        return draft.computes or bool(draft.transfers) or self.awaits_transfer(draft)

    def awaits_transfer(self, draft: PlanDraft) -> bool:
        """Whether nothing can run before a transfer has finished."""
        is_idle = not (draft.computes or self._launched) and self._blocks.swap_space.has_transfers
        return is_idle and (self._lanes.batch.num_seqs > 0 or not self._pool.running)

    @property
    def background_is_in_the_way(self) -> bool:
        """Whether a non-background request waits for something that background groups may hold."""
        start, pool = self._start, self._pool
        return start.others_lack_room and pool.num_background_running > 0 and pool.has_others_waiting

    def begin(self, draft: PlanDraft) -> None:
        """The draft is launched: count its tokens as computed. A drawn id becomes pending, so that the next iteration
        can be decided before it is known; not so if choices fork at it, or if the host must look at every id. A group
        whose only choice draws has only decodes ahead, so it joins the decode batch."""
        joining = []
        for group, sequence, end, draws in draft.advances:
            sequence.num_computed_tokens = end
            sequence.last_iteration = draft.number
            if sequence is group.leader:
                share_prompt(group, self._blocks)
            if draws and group.is_forked and group.runs_ahead:
                sequence.token_ids.append(PENDING_TOKEN_ID)
                if len(group.live) == 1 and not sequence.is_drawn_out:
                    joining.append(group)
        self._lanes.batch.join(joining)

    def _make_room(self, shortage: Shortage, draft: PlanDraft) -> bool:
        """Get blocks for the next tokens of the lane's sequences, and schedule the decode batch. Returns whether a
        group was preempted for these blocks. If none was, a background group that is in the way is preempted."""
        growth, pool = self._growth, self._pool
        num_running = len(pool.running)
        if not growth.has_room(shortage):
            self._lanes.dissolve(pool.running)
            shortage = growth.shortage()
        while not growth.will_have_room(shortage):
            victim = self._preemption.victim(pool.running)
            if growth.is_swapping(victim):
                break  # its blocks cannot be freed before they have arrived, and no other group may be taken instead
            self._preempt(victim, draft)
            shortage = growth.shortage()
        has_preempted = len(pool.running) < num_running
        if self.background_is_in_the_way and not has_preempted:
            self._lanes.dissolve(pool.running)
            victim = self._preemption.victim(pool.running)
            if not growth.is_swapping(victim):
                self._preempt(victim, draft)
            shortage = growth.shortage()
        growth.grow(shortage, draft)
        decodes = self._lanes.batch.advance(draft.number, shortage.decodes)
        if decodes is not None:
            draft.members, draft.decodes = decodes
        return has_preempted

    def _preempt(self, victim: SequenceGroup, draft: PlanDraft) -> None:
        self._lanes.stop(victim)
        self._preemption.preempt(victim, draft)
        self._pool.pause(victim)

    def _schedule_unbatched(self, draft: PlanDraft) -> list[tuple[SequenceGroup, Sequence]]:
        """Schedule the lane's unbatched sequences: those with one token to compute first, then prompt chunks. Returns
        the background prompts if non-background requests wait: they get what is left of the budget after admission."""
        blocks = self._blocks
        prefilling: list[tuple[SequenceGroup, Sequence]] = []
        for group in self._lanes.batch.unbatched.values():
            if group.arrival_order in draft.sitting_out or self._growth.is_swapping(group):
                continue
            for sequence in group.computing:
                num_tokens = sequence.num_tokens_to_compute
                if num_tokens == 0 or not blocks.has_table(sequence.sequence_id):
                    continue
                if num_tokens == 1:
                    self._add_decode(group, sequence, draft)
                else:
                    prefilling.append((group, sequence))
        if prefilling or self._pool.waiting:
            start = prefilling[0][1].num_computed_tokens if prefilling else 0
            num_waiting = self._pool.waiting_tokens.total + sum(s.num_tokens_to_compute for _, s in prefilling)
            draft.budget = self._chunk_budget.num_tokens(draft.num_decodes, draft.num_read, start, num_waiting)
        background = [each for each in prefilling if each[0].request.is_background]
        if background and not all(group.request.is_background for group in self._pool.waiting):
            prefilling = [each for each in prefilling if not each[0].request.is_background]
        else:
            prefilling.sort(key=_is_in_background)  # stable: otherwise in order of start
            background = []
        self._add_chunks(prefilling, draft)
        return background

    def _add_decode(self, group: SequenceGroup, sequence: Sequence, draft: PlanDraft) -> None:
        """Schedule its one token, and as many of its drafts as there is room for."""
        drafts = () if self._drafts is None else self._drafts.of(sequence)
        if drafts and not draft.sitting_out:
            room = self._growth.room_for(sequence, sequence.num_tokens + len(drafts))
            drafts = drafts[: room - sequence.num_tokens]
            if drafts:
                draft.add_with_drafts(group, sequence, self._blocks.table(sequence.sequence_id), drafts)
                return
        draft.add(group, sequence, sequence.num_tokens, self._blocks.table(sequence.sequence_id))

    def _add_chunks(self, prefilling: list[tuple[SequenceGroup, Sequence]], draft: PlanDraft) -> None:
        """Schedule chunks as far as budget and memory go. Each prompt has room for at least one token."""
        for group, sequence in prefilling:
            if group.request.is_background:
                draft.leave_to_background(self._background_chunks.most(draft.now_s))
            if draft.budget > 0:
                end = min(sequence.num_computed_tokens + draft.budget, sequence.num_tokens)
                room = self._growth.room_for_chunk(group, sequence, end)
                draft.add(group, sequence, min(end, room), self._blocks.table(sequence.sequence_id))


def _is_in_background(prefilling: tuple[SequenceGroup, Sequence]) -> bool:
    return prefilling[0].request.is_background
