from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.core.layer_groups import TableGroups
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.cache_room import CacheRoom


def test_without_a_window_all_is_kept():
    room = CacheRoom(10, 4)
    assert (room.num_tokens, room.longest_sequence) == (40, 40)
    assert [room.num_sequences(length) for length in (1, 4, 5, 40, 41)] == [10, 10, 5, 1, 0]


def test_what_gemma_3_4b_keeps_of_its_whole_context():
    """By 7 groups of 5 layers, one of which sees everything; blocks of 16, 8192 tokens, a window of 1024."""
    window = AttentionWindow(1024, 2048, TableGroups(1, 6))
    assert window.of_decodes().most_held(512, 16) == 512 + 6 * 65
    assert window.most_held(512, 16) == 512 + 6 * 193, "while its prompt is computed"
    assert CacheRoom(7 * 512, 16, window).num_sequences(8192) == 3, "where all layers kept all: one"
    assert CacheRoom(100 * 7 * 512, 16, window).num_sequences(8192) == 396
    assert CacheRoom(7 * 512, 16, window).num_tokens == 8192


@given(
    groups=st.builds(TableGroups, st.integers(0, 3), st.integers(1, 5)),
    window=st.integers(1, 50),
    most_new=st.integers(1, 40),
    block_size=st.integers(1, 20),
    num_blocks=st.integers(1, 400),
    length=st.integers(1, 300),
)
def test_a_sequence_fits_if_it_is_not_longer_than_the_longest(groups, window, most_new, block_size, num_blocks, length):
    room = CacheRoom(num_blocks, block_size, AttentionWindow(window, most_new, groups))
    longest = room.longest_sequence
    fits = longest is None or length <= longest
    assert (room.num_sequences(length) > 0) == fits
    without = CacheRoom(num_blocks // groups.size, block_size)
    assert room.num_sequences(length) >= without.num_sequences(length) - 1
    assert room.num_sequences(length) >= room.num_sequences(length + 1)
