from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.core.layer_groups import TableGroups
from service.core.sequence import Sequence
from service.kvcache.block_table import HOLE
from service.kvcache.kv_events import NoKvEvents
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache

BLOCK = 4


def make_sequence(tokens: list[int]) -> Sequence:
    return Sequence(0, 0, 0, tokens, len(tokens), len(tokens) + 1)


def test_a_computed_prefix_is_found_one_token_short_of_the_end():
    cache = ChainedPrefixCache(BLOCK)
    tokens = list(range(12))
    cache.insert(make_sequence(tokens), "", [5, 6, 7], 12)
    assert cache.match(make_sequence(tokens), "") == [5, 6], "the last token is always computed"
    assert cache.match(make_sequence([*tokens, 99]), "") == [5, 6, 7]
    assert cache.match(make_sequence([*tokens[:5], 99, 99, 99, 99]), "") == [5]
    assert cache.match(make_sequence([99, *tokens]), "") == []


def test_only_full_computed_blocks_are_kept():
    cache = ChainedPrefixCache(BLOCK)
    cache.insert(make_sequence(list(range(12))), "", [5, 6, 7], 7)
    assert len(cache.known) == 1


def test_a_salt_keeps_tenants_apart():
    cache = ChainedPrefixCache(BLOCK)
    cache.insert(make_sequence(list(range(8))), "one", [5, 6], 8)
    assert cache.match(make_sequence(list(range(9))), "one") == [5, 6]
    assert cache.match(make_sequence(list(range(9))), "two") == []


def test_a_forgotten_block_ends_the_match():
    cache = ChainedPrefixCache(BLOCK)
    cache.insert(make_sequence(list(range(12))), "", [5, 6, 7], 12)
    cache.known.forget([6])
    cache.known.forget([6])
    assert cache.match(make_sequence(list(range(13))), "") == [5]


def test_the_first_of_two_equal_blocks_stays_the_known_one():
    cache = ChainedPrefixCache(BLOCK)
    cache.insert(make_sequence(list(range(4))), "", [5], 4)
    cache.insert(make_sequence(list(range(4))), "", [6], 4)
    assert cache.match(make_sequence(list(range(5))), "") == [5]
    cache.known.forget([6])
    assert cache.match(make_sequence(list(range(5))), "") == [5]


def test_a_hit_is_believed_only_if_the_tokens_are_equal():
    cache = ChainedPrefixCache(BLOCK)
    cache.insert(make_sequence(list(range(4))), "", [5], 4)
    (digest,) = cache.known.full.entries
    cache.known.full.entries[digest] = cache.known.full.entries[digest]._replace(tokens=bytes(16))
    assert cache.match(make_sequence(list(range(5))), "") == []


@given(first=st.lists(st.integers(0, 1), min_size=1, max_size=40), second=st.lists(st.integers(0, 1), max_size=40))
def test_what_is_found_is_the_longest_common_run_of_full_blocks(first: list[int], second: list[int]):
    cache = ChainedPrefixCache(BLOCK)
    blocks = list(range(100, 100 + len(first) // BLOCK))
    cache.insert(make_sequence(first), "", blocks, len(first))
    expected = 0
    while (expected + 1) * BLOCK <= min(len(first), len(second) - 1) and (
        first[: (expected + 1) * BLOCK] == second[: (expected + 1) * BLOCK]
    ):
        expected += 1
    assert cache.match(make_sequence(second), "") == blocks[:expected]


def test_small_blocks_enter_in_groups_and_leave_in_groups():
    cache = ChainedPrefixCache(1, blocks_per_entry=4)
    sequence, slots = make_sequence(list(range(11))), list(range(50, 61))
    cache.insert(sequence, "", slots, 7)
    assert len(cache.known) == 1
    cache.insert(sequence, "", slots, 11)
    assert len(cache.known) == 2
    assert cache.match(make_sequence(list(range(11))), "") == slots[:8]
    assert cache.match(make_sequence(list(range(8))), "") == slots[:4], "the last token is always computed"
    cache.known.forget([56])
    assert cache.match(make_sequence(list(range(11))), "") == slots[:4]
    cache.insert(make_sequence(list(range(11))), "", list(range(70, 81)), 11)
    assert cache.match(make_sequence(list(range(11))), "") == [*slots[:4], *range(74, 78)]


def test_the_null_twin_finds_nothing():
    cache = NoPrefixCache()
    cache.insert(make_sequence(list(range(8))), "", [1, 2], 8)
    cache.known.forget([1])
    assert cache.match(make_sequence(list(range(8))), "") == []


def test_a_block_stands_for_one_prefix_only():
    cache = ChainedPrefixCache(BLOCK)
    cache.insert(make_sequence(list(range(4))), "one", [5], 4)
    cache.insert(make_sequence(list(range(4))), "two", [5], 4)
    cache.known.forget([5])
    assert len(cache.known) == 0
    for salt in ("one", "two"):
        assert cache.match(make_sequence(list(range(5))), salt) == []


def test_under_a_window_the_last_entries_are_enough():
    """A query sees 6 tokens, so two blocks of 4."""
    cache = ChainedPrefixCache(BLOCK, window=6)
    tokens = list(range(17))
    cache.insert(make_sequence(tokens), "", [5, 6, 7, 8], 16)
    assert cache.match(make_sequence(tokens), "") == [HOLE, HOLE, 7, 8]
    cache.known.forget([5, 6])
    assert cache.match(make_sequence(tokens), "") == [HOLE, HOLE, 7, 8]
    assert cache.match(make_sequence(tokens[:9]), "") == []
    cache.known.forget([8])
    assert cache.match(make_sequence(tokens), "") == [], "the token behind the third block sees the second, too"


def test_under_a_window_a_short_beginning_needs_all_it_has():
    cache = ChainedPrefixCache(BLOCK, window=100)
    tokens = list(range(13))
    cache.insert(make_sequence(tokens), "", [5, 6, 7], 12)
    assert cache.match(make_sequence(tokens), "") == [5, 6, 7]
    cache.known.forget([5])
    assert cache.match(make_sequence(tokens), "") == []


def test_holes_are_not_offered_and_what_is_behind_them_is():
    cache = ChainedPrefixCache(BLOCK, window=4)
    tokens = list(range(13))
    cache.insert(make_sequence(tokens), "", [HOLE, 6, 7], 12)
    assert set(cache.known.block_ids()) == {6, 7}
    assert cache.match(make_sequence(tokens), "") == [HOLE, HOLE, 7]


def test_where_some_layers_see_a_window_the_others_need_the_whole_beginning():
    """A query sees 6 tokens in two groups of layers, and everything in one."""
    cache = ChainedPrefixCache(BLOCK, window=6, groups=TableGroups(1, 2))
    tokens = list(range(17))
    cache.insert(make_sequence(tokens), "", [1, 11, 21, 2, 12, 22, 3, 13, 23, 4, 14, 24], 16)
    whole = [1, HOLE, HOLE, 2, HOLE, HOLE, 3, 13, 23, 4, 14, 24]
    assert cache.match(make_sequence(tokens), "") == whole
    cache.known.forget([11, 22])
    assert cache.match(make_sequence(tokens), "") == whole
    cache.known.forget([24])
    assert cache.match(make_sequence(tokens), "") == [], "the token behind the third block sees the second, too"
    cache.insert(make_sequence(tokens), "", [5, 15, 25, 6, 16, 26, 7, 17, 27, 8, 18, 28], 12)
    assert cache.match(make_sequence(tokens), "") == [1, HOLE, HOLE, 2, 16, 26, 3, 13, 23], "what is known is kept"
    cache.known.forget([2])
    assert cache.match(make_sequence(tokens), "") == [1, 15, 25]


def test_events_tell_of_what_sees_everything():
    told = []

    class Events(NoKvEvents):
        def stored(self, digest: bytes, parent: bytes | None, tokens: bytes, salt: str) -> None:
            told.append(digest)

        def removed(self, digest: bytes) -> None:
            told.remove(digest)

    cache = ChainedPrefixCache(BLOCK, events=Events(), window=6, groups=TableGroups(1, 1))
    cache.insert(make_sequence(list(range(8))), "", [1, 11, 2, 12], 8)
    assert len(told) == 2
    cache.known.forget([11, 12])
    assert len(told) == 2 == len(cache.known)
    cache.known.forget([1])
    assert len(told) == 1 == len(cache.known)


def test_of_entries_of_several_blocks_only_those_are_taken_that_are_seen():
    cache = ChainedPrefixCache(2, 4, window=3)
    tokens = list(range(17))
    cache.insert(make_sequence(tokens), "", [1, 2, 3, 4, 5, 6, 7, 8], 16)
    assert cache.match(make_sequence(tokens), "") == [*[HOLE] * 7, 8]
