"""One sequence of an iteration, described individually: a prompt chunk, or a decode that needs more than a row of
`ScheduledDecodes`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

from service.core.sampling_params import SamplingParams

PENDING_TOKEN_ID = -2
"""In place of the id that the sequence drew last, while only the executor knows it."""


class Sample(NamedTuple):
    """Draw one id from the logits of a scheduled sequence's last token.

    sequence_id: the sequence that gets the id; it may be a sibling, since a prompt's logits serve all n choices.
    seed: together with the new token's position it determines the draw.
    """

    sequence_id: int
    seed: int


class Past(NamedTuple):
    """The tokens before the scheduled ones, for an executor that sees the sequence for the first time.

    token_ids: those at positions 0, 1, ..., num_computed_tokens - 1. num_prompt_tokens: of the whole sequence.
    """

    token_ids: tuple[int, ...]
    num_prompt_tokens: int


class ScheduledSequence(NamedTuple):
    """One sequence of an iteration, with all that the executor must be told.

    row: index, >= 1, of the executor's state for the sequence. The row belongs to this sequence from the first plan
        that has it with table_start 0 until a plan has another sequence there with table_start 0.
    token_ids: the ids to compute, at positions num_computed_tokens, num_computed_tokens + 1, ... The last one may be
        PENDING_TOKEN_ID: the executor takes the id that the row drew last (any valid id if that draw failed).
    num_computed_tokens: how many tokens before them have keys and values in the cache.
    table_start, block_ids: from index `table_start` on, the block table is now `block_ids`; earlier entries are
        unchanged. table_start is 0 for a sequence that is new to the executor. Empty if nothing changed.
    samples: draws from the last token's logits; empty for a prompt chunk that is not the last one.
    past: given if the sequence is new to the executor and its sampling `looks_back`.
    targets: if prompt logprobs are wanted: the prompt ids at positions num_computed_tokens + 1, ..., which the
        scheduled tokens predict. In the last chunk there is one target fewer than scheduled tokens.
    num_pooled: the sum of the hidden states of this many last scheduled tokens is to be returned.
    adapter_slot: slot of its adapter, 0 for none. Constant while the sequence has the row.
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
"""Fields of a ScheduledSequence, for `map`: a third of the cost of attribute access."""


def check_drafts(scheduled: Sequence[ScheduledSequence]) -> None:
    """Raise AssertionError unless items of one sequence are consecutive, and each but the first is one draft token."""
    num_drafts = 0
    for before, item in pairwise(scheduled):
        if item.sequence_id == before.sequence_id:
            num_drafts += 1
            assert len(before.samples) == len(item.samples) == len(item.token_ids) == 1, "a draft is one token"
            assert item.num_computed_tokens == before.num_computed_tokens + len(before.token_ids), "one by one"
    num_sequences = len(set(map(SEQUENCE_ID, scheduled)))
    assert num_sequences + num_drafts == len(scheduled), "a sequence is scheduled once an iteration, but for its drafts"
