"""How much those who wait have to compute, whole and with shared beginnings counted once."""

from __future__ import annotations

from service.core.request import Request
from service.core.sequence_group import SequenceGroup

CHUNK_TOKENS = 256
"""Beginnings are compared in pieces of about this many tokens: looking at a long prompt costs 10 ns a token."""


class WaitingTokens:
    """Engine thread only. All groups that wait are noted here, by their order of arrival.

    total: tokens that they have to compute. distinct: the same, but the beginning of several prompts once, since the
    prefix cache serves it to all but the first; it may already serve that one.

    tokens_per_entry: of the prefix cache (`PrefixCache`).
    """

    def __init__(self, tokens_per_entry: int) -> None:
        self._chunk_tokens = -(-CHUNK_TOKENS // tokens_per_entry) * tokens_per_entry
        self._tokens: dict[int, int] = {}
        self._chunks: dict[int, list[int]] = {}  # of those whose prompts have any
        self._num_holders: dict[int, int] = {}  # of each chunk
        self.total = 0
        self._num_shared = 0

    @property
    def distinct(self) -> int:
        return self.total - self._num_shared

    def begins(self, group: SequenceGroup) -> None:
        """It waits from now on. What one computes again after a preemption is its own."""
        self.update(group)
        if group.num_preemptions or group.needs_whole_prompt:
            return  # the latter computes all of its prompt
        chunks = self._chunks_of(group.request)
        if chunks:
            self._chunks[group.arrival_order] = chunks
        holders = self._num_holders
        for chunk in chunks:
            holders[chunk] = num_holders = holders.get(chunk, 0) + 1
            self._num_shared += self._chunk_tokens if num_holders > 1 else 0

    def update(self, group: SequenceGroup) -> None:
        """It waits, and what it has to compute may have changed."""
        num_tokens = group.num_tokens_to_compute
        self.total += num_tokens - self._tokens.get(group.arrival_order, 0)
        self._tokens[group.arrival_order] = num_tokens

    def ends(self, group: SequenceGroup) -> None:
        """It waits no more, or never began to, by a fault."""
        self.total -= self._tokens.pop(group.arrival_order, 0)
        holders = self._num_holders
        for chunk in self._chunks.pop(group.arrival_order, ()):
            holders[chunk] -= 1
            if holders[chunk]:
                self._num_shared -= self._chunk_tokens
            else:
                del holders[chunk]

    def _chunks_of(self, request: Request) -> list[int]:
        """A hash of the prompt up to the end of each of its chunks. Who makes two meet is counted as less than it is;
        nothing else depends on them."""
        token_ids, size = request.prompt_token_ids, self._chunk_tokens
        chunks, parent = list[int](), hash(request.prefix_salt)
        for end in range(size, len(token_ids) + 1, size):
            parent = hash((parent, token_ids[end - size : end]))
            chunks.append(parent)
        return chunks
