"""A request's sequences (choices or beams): admitted, preempted and ended together (PagedAttention, section 4.5)."""

from __future__ import annotations

from collections import deque
from enum import Enum, auto

from service.core.embedding import Vector
from service.core.request import Request
from service.core.request_journal import RequestJournal
from service.core.sequence import Sequence
from service.core.stats import PreemptionStats
from service.core.token_logprobs import TokenLogprobs

MAX_PREEMPTIONS_KEPT = 16


class GroupStatus(Enum):
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


class SequenceGroup:
    """The engine's state of a live request. Owned by the engine thread.

    The prompt is computed once, by the leader (the first live sequence). Until `is_forked` the other sequences have no
    blocks, and all share one `token_ids` list, so a waiting request holds its prompt once however many choices it has.
    When the prompt is computed, its last logits are sampled n times and the others fork from the leader.

    num_cached_tokens: prompt tokens taken from the prefix cache, which were never computed for this request.
    preemptions: the last few of `num_preemptions`. runs_ahead: its next iteration may be launched before the ids of the
    previous one are known. prompt_logprobs: gathered so far, one per prompt token except the first; None if not wanted
    or already delivered. pooled: the sum so far of the hidden states to pool.
    """

    __slots__ = (
        "first_scheduled_s",
        "first_token_s",
        "is_forked",
        "journal",
        "last_token_s",
        "live",
        "num_cached_tokens",
        "num_output_tokens",
        "num_preemptions",
        "pooled",
        "preemptions",
        "prompt_logprobs",
        "request",
        "runs_ahead",
        "sequences",
        "status",
    )

    def __init__(self, request: Request, first_sequence_id: int) -> None:
        prompt = list(request.prompt_token_ids)
        self.request = request
        self.sequences = [
            Sequence(
                first_sequence_id + i,
                i,
                _wrap_int64(request.sampling.seed + i),
                prompt,
                len(prompt),
                request.max_num_tokens,
            )
            for i in range(request.sampling.num_sequences)
        ]
        if request.grammar is not None:
            for sequence in self.sequences:
                sequence.matcher = request.grammar.start()
        self.live = list(self.sequences)
        self.status = GroupStatus.WAITING
        self.is_forked = request.sampling.num_sequences == 1
        self.runs_ahead = not request.needs_ids_on_host
        self.journal = RequestJournal(request.arrival_s)
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.num_preemptions = 0
        self.preemptions: deque[PreemptionStats] = deque(maxlen=MAX_PREEMPTIONS_KEPT)
        self.num_output_tokens = 0
        self.num_cached_tokens = 0
        self.pooled: Vector | None = None
        wants_prompt = request.sampling.num_prompt_logprobs is not None
        self.prompt_logprobs: list[TokenLogprobs] | None = [] if wants_prompt else None

    @property
    def arrival_order(self) -> int:
        """Increases with every accepted request."""
        return self.sequences[0].sequence_id

    @property
    def leader(self) -> Sequence:
        return self.live[0]

    @property
    def computing(self) -> list[Sequence]:
        """The sequences that have tokens of their own to compute: all live ones once forked, else the leader."""
        return self.live if self.is_forked else self.live[:1]

    @property
    def needs_whole_prompt(self) -> bool:
        """Whether every prompt token has to be computed for it, whatever the prefix cache holds."""
        return self.prompt_logprobs is not None or self.request.sampling.pooling == "mean"

    @property
    def num_tokens_to_compute(self) -> int:
        return sum(s.num_tokens_to_compute for s in self.computing)


def _wrap_int64(value: int) -> int:
    return (value + 2**63) % 2**64 - 2**63
