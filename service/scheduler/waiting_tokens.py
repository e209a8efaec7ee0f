"""How many tokens waiting requests have to compute: in total, and with shared prefixes counted once."""

from __future__ import annotations

from service.core.request import Request
from service.core.sequence_group import SequenceGroup

CHUNK_TOKENS = 256
"""Prefixes are compared in pieces of about so many tokens. Hashing a prompt costs 10 ns per token."""


class WaitingTokens:
    """Engine thread only. Keyed by arrival order; contains every waiting group.

    total: tokens to compute. distinct: the same, but a prefix that several prompts share counts once, since the prefix
    cache serves it to all but the first (and perhaps to that one, too).

    tokens_per_entry: of the prefix cache (`PrefixCache`).
    """

    def __init__(self, tokens_per_entry: int) -> None:
        self._chunk_tokens = -(-CHUNK_TOKENS // tokens_per_entry) * tokens_per_entry
        self._tokens: dict[int, int] = {}
        self._chunks: dict[int, list[int]] = {}  # groups without a full chunk are left out
        self._num_holders: dict[int, int] = {}  # by chunk
        self.total = 0
        self._num_shared = 0

    @property
    def distinct(self) -> int:
        return self.total - self._num_shared

    def begins(self, group: SequenceGroup) -> None:
        """The group starts to wait. What a preempted group recomputes is never counted as shared."""
        self.update(group)
        if group.num_preemptions or group.needs_whole_prompt:
            return  # with needs_whole_prompt the prefix cache is not used
        chunks = self._chunks_of(group.request)
        if chunks:
            self._chunks[group.arrival_order] = chunks
        holders = self._num_holders
        for chunk in chunks:
            holders[chunk] = num_holders = holders.get(chunk, 0) + 1
            self._num_shared += self._chunk_tokens if num_holders > 1 else 0

    def update(self, group: SequenceGroup) -> None:
        """The group waits, and the number of tokens that it has to compute may have changed."""
        num_tokens = group.num_tokens_to_compute
        self.total += num_tokens - self._tokens.get(group.arrival_order, 0)
        self._tokens[group.arrival_order] = num_tokens

    def ends(self, group: SequenceGroup) -> None:
        """The group no longer waits. Also allowed if `begins` has failed."""
        self.total -= self._tokens.pop(group.arrival_order, 0)
        holders = self._num_holders
        for chunk in self._chunks.pop(group.arrival_order, ()):
            holders[chunk] -= 1
            if holders[chunk]:
                self._num_shared -= self._chunk_tokens
            else:
                del holders[chunk]

    def _chunks_of(self, request: Request) -> list[int]:
        """A hash of the prompt up to each chunk's end. A collision only makes `distinct` too small; nothing else
        depends on these hashes."""
        token_ids, size = request.prompt_token_ids, self._chunk_tokens
        chunks, parent = list[int](), hash(request.prefix_salt)
        for end in range(size, len(token_ids) + 1, size):
            parent = hash((parent, token_ids[end - size : end]))
            chunks.append(parent)
        return chunks
