"""Plans as Hypothesis draws them, and what it means that two are equal."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from hypothesis import strategies as st

from service.core.adapter import AdapterLoad
from service.core.block_moves import BlockCopy, Transfer
from service.core.iteration import NO_DECODES, GrownTables, IterationPlan, ScheduledDecodes
from service.core.sampling_params import BeamParams, SamplingParams
from service.core.scheduled_sequence import Past, Sample, ScheduledSequence
from service.core.training import Arena, TrainingShare

INTEGERS = st.integers(-(2**63), 2**63 - 1)
COUNTS = st.integers(0, 2**40)
IDS = st.integers(0, 2**31)
REALS = st.floats(allow_nan=False)


def tuples(of: st.SearchStrategy, at_most: int = 4) -> st.SearchStrategy:
    return st.lists(of, max_size=at_most).map(tuple)


BEAMS = st.builds(BeamParams, IDS, REALS, st.sampled_from([False, True, "never"]), st.none() | st.integers(0, 128))
SAMPLING = st.builds(
    SamplingParams,
    max_tokens=COUNTS,
    n=COUNTS,
    temperature=REALS,
    top_p=REALS,
    top_k=COUNTS,
    seed=INTEGERS,
    stop_token_ids=st.frozensets(IDS, max_size=3),
    min_p=REALS,
    presence_penalty=REALS,
    frequency_penalty=REALS,
    repetition_penalty=REALS,
    logit_bias=tuples(st.tuples(IDS, REALS)),
    allowed_token_ids=st.none() | tuples(IDS),
    bad_words=tuples(tuples(IDS), 2),
    min_tokens=COUNTS,
    num_logprobs=st.none() | COUNTS,
    num_prompt_logprobs=st.none() | COUNTS,
    logprob_token_ids=tuples(IDS),
    beam=st.none() | BEAMS,
) | st.builds(SamplingParams, max_tokens=COUNTS)
SAMPLING |= st.builds(SamplingParams, max_tokens=st.just(0), pooling=st.sampled_from(["last", "mean"]))


@dataclass(frozen=True)
class Masks:
    rows: tuple[int, ...]

    def wait(self) -> memoryview:
        raise AssertionError("not of a message")


@st.composite
def scheduled(draw: st.DrawFn) -> tuple[ScheduledSequence, ...]:
    shared = draw(st.lists(SAMPLING, min_size=1, max_size=2))
    ids = draw(st.lists(INTEGERS, max_size=3, unique=True))
    sequences = tuple(
        ScheduledSequence(
            sequence_id,
            draw(st.integers(1, 5)),
            draw(st.lists(IDS, min_size=1, max_size=5).map(tuple)),
            draw(COUNTS),
            draw(COUNTS),
            draw(tuples(IDS)),
            draw(st.sampled_from(shared) | SAMPLING),
            draw(tuples(st.builds(Sample, INTEGERS, INTEGERS), 2)),
            draw(st.none() | st.builds(Past, tuples(IDS), COUNTS)),
            draw(tuples(IDS)),
            draw(st.integers(0, 9)),
        )
        for sequence_id in ids
    )
    return tuple(
        item if item.sampling.pooling is None else item._replace(num_pooled=draw(COUNTS)) for item in sequences
    )


def columns(draw: st.DrawFn, length: int, of: st.SearchStrategy) -> np.ndarray:
    return np.array(draw(st.lists(of, min_size=length, max_size=length)), np.int64)


@st.composite
def decodes(draw: st.DrawFn) -> ScheduledDecodes:
    length = draw(st.integers(1, 4))
    num_new = columns(draw, length, st.integers(1, 3))
    return ScheduledDecodes(
        draw(st.integers(0, 12)),
        *(columns(draw, length, INTEGERS) for _ in range(3)),
        columns(draw, length, COUNTS),
        num_new,
        draw(st.just(int(num_new.sum())) | COUNTS),
        draw(grown()),
    )


@st.composite
def grown(draw: st.DrawFn) -> GrownTables:
    length = draw(st.integers(0, 3))
    return GrownTables(*(columns(draw, length, COUNTS) for _ in range(3)))


@st.composite
def plans(draw: st.DrawFn) -> IterationPlan:
    if draw(st.integers(0, 7)) == 0:
        arena = draw(st.none() | st.builds(Arena, COUNTS, COUNTS, st.integers(0, 50)))
        return IterationPlan((), training=TrainingShare(draw(COUNTS), draw(st.integers(1, 9)), arena))
    blocks = iter(range(1000))

    def few() -> tuple[int, ...]:
        return tuple(next(blocks) for _ in range(draw(st.integers(0, 3))))

    return IterationPlan(
        draw(scheduled()),
        tuple(BlockCopy(next(blocks), next(blocks)) for _ in range(draw(st.integers(0, 2)))),
        draw(tuples(IDS)),
        tuple(Transfer(draw(COUNTS), draw(st.booleans()), few(), few()) for _ in range(draw(st.integers(0, 2)))),
        draw(st.booleans()),
        draw(st.none() | st.builds(Masks, tuples(st.integers(-1, 9)))),
        draw(st.just(NO_DECODES) | decodes()),
        tuple(AdapterLoad(slot, draw(COUNTS), few()) for slot in range(1, 1 + draw(st.integers(0, 2)))),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[IterationPlan]:
    """Plans as they follow each other: of some the decodes go on, and sequences keep their parameters."""
    history = draw(st.lists(plans(), min_size=1, max_size=6))
    for plan in list(history):
        before = plan.decodes
        if before is not NO_DECODES and draw(st.booleans()):
            after = ScheduledDecodes(
                before.version,
                before.sequence_ids.copy(),
                before.rows,
                before.seeds,
                before.num_computed_tokens + before.num_new_tokens,
                before.num_new_tokens.copy(),
                draw(st.just(before.num_tokens) | st.just(int(before.num_new_tokens.sum()))),
                draw(grown()),
            )
            history.append(IterationPlan(plan.scheduled, decodes=after))
        elif draw(st.booleans()):
            history.append(IterationPlan(plan.scheduled))
    return history


def is_same(one: IterationPlan, other: IterationPlan) -> bool:
    """Equal in every field, decodes and masks compared by what is in them."""
    for field in fields(IterationPlan):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        if field.name == "decodes":
            if not same_decodes(mine, theirs):
                return False
        elif field.name == "masks":
            if (mine is None) != (theirs is None) or (mine is not None and tuple(mine.rows) != tuple(theirs.rows)):
                return False
        elif mine != theirs:
            return False
    return True


def same_decodes(one: ScheduledDecodes, other: ScheduledDecodes) -> bool:
    arrays = ("sequence_ids", "rows", "seeds", "num_computed_tokens", "num_new_tokens")
    return (
        (one.version, one.num_tokens) == (other.version, other.num_tokens)
        and all(np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays)
        and all(map(np.array_equal, one.grown, other.grown))
    )
