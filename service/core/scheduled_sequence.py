"""One sequence of an iteration, told by itself: a chunk of a prompt, or a decode of which there is more to tell than a
row of `ScheduledDecodes` holds."""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

from service.core.sampling_params import SamplingParams

PENDING_TOKEN_ID = -2
"""Stands for the id that the sequence drew last, while the host does not know it yet."""


class Sample(NamedTuple):
    """One id to be drawn from the logits of a scheduled sequence's last token.

    sequence_id: the sequence that gets the id (a sibling's, when a prompt's logits serve all n choices).
    seed: keys the draw together with the position of the new token.
    """

    sequence_id: int
    seed: int


class Past(NamedTuple):
    """What came before the scheduled tokens, for an executor that sees the sequence for the first time.

    token_ids: the ids at positions 0, 1, ..., num_computed_tokens - 1. num_prompt_tokens: of the whole sequence.
    """

    token_ids: tuple[int, ...]
    num_prompt_tokens: int


class ScheduledSequence(NamedTuple):
    """One sequence of an iteration, with all that the executor has to be told of it.

    row: where the executor keeps what it remembers of the sequence, >= 1. It is the sequence's from the first plan that
        has it with table_start 0 until another sequence's is scheduled there so.
    token_ids: the ids to compute, at positions num_computed_tokens, num_computed_tokens + 1, ... The last one may be
        PENDING_TOKEN_ID: the executor takes the id that the row drew last, any valid id if that draw failed.
    num_computed_tokens: tokens before them whose keys and values are in the cache.
    table_start, block_ids: the sequence's block table from index `table_start` on is now `block_ids`; entries
        before it are as the executor last saw them. A sequence new to the executor has table_start 0.
        Empty when nothing changed.
    samples: draws from the last token's logits; empty for a prompt chunk that is not the last.
    past: given if the sequence is new to the executor and its sampling `looks_back`.
    targets: if the prompt's logprobs are wanted, the prompt ids at positions num_computed_tokens + 1, ..., which the
        scheduled tokens predict. At the prompt's end they are one fewer than the scheduled tokens.
    num_pooled: of the scheduled tokens the last ones, whose hidden states are wanted, as their sum.
    adapter_slot: of the adapter whose weights it is computed with, 0 for none; as long as it has its row.
    """

    sequence_id: int
    row: int
    token_ids: tuple[int, ...]
    num_computed_tokens: int
    table_start: int
    block_ids: tuple[int, ...]
    sampling: SamplingParams
    samples: tuple[Sample, ...]
    past: Past | None = None
    targets: tuple[int, ...] = ()
    adapter_slot: int = 0
    num_pooled: int = 0


SEQUENCE_ID, TOKEN_IDS, SAMPLES = (
    itemgetter(ScheduledSequence._fields.index(name)) for name in ("sequence_id", "token_ids", "samples")
)
"""Fields of a ScheduledSequence, for `map`: a third of what the attribute costs."""
