from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.sequence_group import SequenceGroup
from service.scheduler.waiting_tokens import CHUNK_TOKENS, WaitingTokens

NO_CACHE = 2**63
SYSTEM = tuple(range(8 * CHUNK_TOKENS))


def group_of(prompt: tuple[int, ...], number: int, salt: str = "", *, scored: bool = False) -> SequenceGroup:
    sampling = SamplingParams(max_tokens=4, num_prompt_logprobs=0 if scored else None)
    return SequenceGroup(Request(f"request-{number}", prompt, sampling, 0.0, salt), number)


def counted(groups: list[SequenceGroup], tokens_per_entry: int = 16) -> tuple[int, int]:
    waiting = WaitingTokens(tokens_per_entry)
    for group in groups:
        waiting.begins(group)
    return waiting.total, waiting.distinct


def test_a_beginning_that_all_share_counts_once():
    groups = [group_of((*SYSTEM, *range(number, number + 252)), number) for number in range(1000)]
    assert counted(groups) == (1000 * 2300, 2048 + 1000 * 252)


def test_each_counts_in_full_where_the_prefix_cache_serves_nothing():
    long = SYSTEM[: 2 * CHUNK_TOKENS]
    for groups, cache in (
        ([group_of(long, number) for number in range(3)], NO_CACHE),
        ([group_of(long, number, salt=str(number)) for number in range(3)], 16),
        ([group_of(long, number, scored=True) for number in range(3)], 16),
        ([group_of((number, *long), number) for number in range(3)], 16),
        ([group_of(long[: CHUNK_TOKENS - 1], number) for number in range(3)], 16),
    ):
        total, distinct = counted(groups, cache)
        assert total == distinct > 0


def test_what_a_preempted_one_computes_again_is_its_own():
    groups = [group_of(SYSTEM, number) for number in range(3)]
    groups[2].num_preemptions = 1
    assert counted(groups) == (3 * 2048, 2 * 2048)


prompts = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.booleans()), min_size=1, max_size=12)


@given(prompts, st.randoms(use_true_random=False), st.sampled_from([1, 16, 100, 300]))
def test_whoever_comes_and_goes_in_whatever_order(
    drawn: list[tuple[int, int, bool]], chance: Random, tokens_per_entry: int
):
    """At any time the count equals its definition over the waiting requests: equal chunks after equal beginnings count
    once."""
    waiting = WaitingTokens(tokens_per_entry)
    size = -(-CHUNK_TOKENS // tokens_per_entry) * tokens_per_entry
    present: list[SequenceGroup] = []

    def check() -> None:
        total = sum(group.num_tokens_to_compute for group in present)
        beginnings = [
            (group.request.cache_salt, group.request.prompt_token_ids[:end])
            for group in present
            for end in range(size, group.request.num_prompt_tokens + 1, size)
        ]
        assert waiting.total == total
        assert waiting.distinct == total - size * (len(beginnings) - len(set(beginnings)))

    for number, (num_shared, num_own, salted) in enumerate(drawn):
        prompt = (*range(num_shared * size), *(10_000 + number,) * (num_own * size), 7)
        group = group_of(prompt, number, "salt" if salted else "")
        present.append(group)
        waiting.begins(group)
        check()
    chance.shuffle(present)
    while present:
        waiting.ends(present.pop())
        check()
    assert not (waiting._tokens or waiting._chunks or waiting._num_holders)
