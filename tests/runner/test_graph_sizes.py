from __future__ import annotations

import random

import pytest

from service.runner.graph_sizes import (
    DRAWING_TOKENS,
    MAX_DECODES,
    TILED,
    GraphSize,
    PaddedStep,
    common_sizes,
    graph_sizes,
    most_missed,
    most_prompts,
    narrowest,
    outrun,
    rows_of_logits,
)


def decode_sizes(max_num_seqs):
    return sorted(size.num_decodes for size in graph_sizes(max_num_seqs, 2048) if not size.is_mixed)


def test_sizes_of_decodes_are_few_below_8_and_reach_the_largest_batch():
    assert decode_sizes(1) == [1]
    assert decode_sizes(6) == [1, 2, 4, 6]
    assert decode_sizes(64) == [1, 2, 4, *range(8, 65, 8)]
    assert decode_sizes(300)[-3:] == [248, 256, 300]
    assert decode_sizes(4096)[-2:] == [896, MAX_DECODES]


def test_what_a_graph_has_room_for():
    size = GraphSize(42, 2)
    assert size.takes(42, 2, 1)
    assert size.takes(42, 0, most_prompts(42))
    assert not size.takes(42, 0, most_prompts(42) + 1)
    assert not size.takes(8, 3, 1)
    assert not size.takes(43, 1, 1)
    assert size.takes(42, 2, 1, num_draws=2 + most_prompts(42)), "a prompt's choices, as many as others could draw"
    assert not size.takes(42, 2, 1, num_draws=3 + most_prompts(42))
    assert GraphSize(8, 8).takes(5, 5, 0)
    assert not GraphSize(8, 8).takes(5, 3, 1)


def test_a_step_is_padded_to_the_next_size_that_takes_it_if_that_is_not_too_far():
    sizes = sorted(GraphSize(num_tokens, d) for num_tokens in (64, 128, 512, 2048) for d in (0, 32))
    assert [narrowest(sizes, n, 0, 1) for n in (3, 64, 65, 513, 1535, 1536)] == [
        (64, 0), (64, 0), (128, 0), None, None, (2048, 0)
    ]  # fmt: skip
    assert narrowest(sizes, 60, 20, 1) == (64, 32)
    assert narrowest(sizes, 60, 33, 1) is None
    assert narrowest(sizes, 100, 0, 16) == (128, 0)
    assert narrowest(sizes, 100, 0, 17) == (512, 0)
    assert narrowest(sizes, 100, 0, 33) is None, "2048 has room for so many prompts, and is too far"
    assert narrowest(sizes, 20, 20, 0) == (64, 32), "prompts of one token are computed like decodes"
    decodes = [GraphSize(n, n) for n in (1, 8, 300)]
    assert [narrowest(decodes, n, n, 0) for n in (1, 2, 9, 300, 301)] == [(1, 1), (8, 8), (300, 300), (300, 300), None]


def test_a_deep_queues_iteration_has_a_graph_and_the_tail_of_one_is_not_padded_to_it():
    sizes = sorted(size for size in graph_sizes(1024, 4096) if size.is_mixed)
    assert [narrowest(sizes, 4096, d, 16) for d in (0, 1024, 1025)] == [(4096, 1024), (4096, 1024), None]
    assert [narrowest(sizes, n, 0, 8) for n in (2048, 2049, 3583, 3584)] == [(2048, 1024), None, None, (4096, 1024)]


def test_prompts_of_16_tokens_have_room_however_many_start_at_once():
    sizes = sorted(size for size in graph_sizes(256, 2048) if size.is_mixed)
    for num_tokens in range(2, 2049):
        assert narrowest(sizes, num_tokens, 0, max(1, num_tokens // 16)) is not None
    assert narrowest(sizes, 264, 38, 17) == (320, 64), "steps of a chatbot's traffic"
    assert narrowest(sizes, 1430, 0, 87) == (1536, 256)


def test_a_narrow_step_beside_some_decodes_has_few_to_pad():
    sizes = sorted(size for size in graph_sizes(1024, 2048) if size.is_mixed)
    rooms = [narrowest(sizes, n, d, 1) for n in (200, 512, 640) for d in (20, 40, 100)]
    assert [size and size.num_decodes for size in rooms] == [32, 64, 254, 32, 64, 256, 638, 638, 638]


def test_a_wide_step_has_one_size_of_its_tokens_and_draws_behind_its_graph():
    sizes = graph_sizes(1024, 4096)
    wide = [size for size in sizes if size.is_mixed and size.num_tokens > DRAWING_TOKENS]
    assert len({size.num_tokens for size in wide}) == len(wide) > 8
    assert {size for size in sizes if not size.draws} == set(wide)


@pytest.mark.parametrize("most", [70, 1152, 3000])
def test_as_many_rows_of_logits_as_draws_and_a_few_that_make_them_fast(most):
    assert rows_of_logits(most, most) == most, "of a whole graph all"
    for num_draws in range(1, most):
        rows = rows_of_logits(num_draws, most)
        assert num_draws <= rows <= most
        assert rows in (*TILED, most)
        assert rows - num_draws < 256 or num_draws > TILED[-1]


def test_a_size_that_takes_longer_than_a_larger_one_nearby_is_not_kept():
    timed = {GraphSize(448, 0): 14.0, GraphSize(448, 32): 14.0, GraphSize(512, 16): 11.0, GraphSize(640, 16): 10.2}
    assert outrun(timed) == {GraphSize(448, 0)}, "512 has no room for 32 decodes; 10.2 and 11.0 may be the same"
    assert outrun({GraphSize(1024, 0): 30.0, GraphSize(2048, 0): 20.0}) == set(), "a step would be padded too far"


@pytest.mark.parametrize(
    ("seats", "budget"), [(1, 2), (1, 3), (5, 40), (64, 2048), (256, 2048), (1024, 2048), (700, 900)]
)
def test_any_mixed_step_within_seats_and_budget_finds_a_graph_with_little_padding(seats, budget):
    mixed = [size for size in graph_sizes(seats, budget) if size.is_mixed]
    assert all(size.num_decodes <= seats and size.num_tokens <= budget for size in mixed)
    chance = random.Random(seats)
    for _ in range(300):
        num_tokens = chance.randint(2, budget)
        num_decodes = chance.randint(0, min(seats, num_tokens - 2))
        narrowest = min(n for n, d in mixed if n >= num_tokens and d >= num_decodes)
        assert narrowest - num_tokens < (32 if num_tokens <= 64 else 128 if num_tokens <= 1280 else 256)


@pytest.mark.parametrize(("seats", "budget"), [(1, 2), (48, 2048), (256, 2048), (512, 4096), (1024, 4096), (700, 900)])
def test_the_largest_graph_is_the_first_then_come_the_common_ones_and_any_step_finds_one(seats, budget):
    sizes, common = graph_sizes(seats, budget), common_sizes(seats, budget)
    assert sizes[0] == max(sizes)
    assert len(set(sizes)) == len(sizes) < 160
    assert set(sizes[: len(common)]) == common
    assert len(common) < 45
    rest = sizes[len(common) :]
    many = [size for size in rest if not size.is_mixed and size.num_tokens > 256]
    assert rest == sorted(many) + sorted(set(rest) - set(many))
    assert GraphSize(min(seats, MAX_DECODES), min(seats, MAX_DECODES)) in common
    assert GraphSize(budget, min(seats, budget - 2)) in common
    assert [size for size in sizes if size in common and size.num_tokens > 2048] == sizes[: budget > 2048]
    mixed = sorted(size for size in common if size.is_mixed)
    chance = random.Random(seats)
    for _ in range(300):
        num_tokens = chance.randint(2, min(budget, 2048))
        assert narrowest(mixed, num_tokens, chance.randint(0, min(seats, num_tokens - 2)), 1) is not None


def test_the_size_that_most_steps_miss():
    waiting = [GraphSize(320, 32), GraphSize(192, 32), GraphSize(40, 40), GraphSize(24, 24)]
    wide, whole = PaddedStep(300, 20, 1, GraphSize(512, 32)), PaddedStep(18, 18, 0, GraphSize(32, 32))
    assert most_missed(waiting, [wide, wide, whole]) == (320, 32)
    assert most_missed(waiting, [wide, whole, whole]) == (24, 24)
    assert most_missed(waiting, [wide, *[whole] * 99]) == (24, 24)
    assert most_missed([GraphSize(320, 32)], [wide, *[whole] * 99]) is None, "too seldom"
    assert most_missed(waiting, [PaddedStep(36, 36, 0, None)]) == (40, 40), "kernel by kernel"
    for step in (PaddedStep(300, 20, 1, GraphSize(320, 32)), PaddedStep(300, 40, 1, None), PaddedStep(50, 50, 0, None)):
        assert most_missed(waiting, [step]) is None, "no size is narrower, or has room"
    assert most_missed([GraphSize(512, 32)], [PaddedStep(500, 20, 1, GraphSize(512, 256))]) == (512, 32)
    assert most_missed(waiting, []) is None
    assert most_missed([], [wide]) is None


def test_in_the_end_no_step_within_the_budget_misses_a_size():
    chance, sizes = random.Random(3), graph_sizes(256, 2048)
    mixed, decodes = (sorted(size for size in sizes if size.is_mixed is is_mixed) for is_mixed in (True, False))
    for _ in range(300):
        num_tokens = chance.randint(2, 2048)
        num_decodes = chance.randint(0, min(256, num_tokens - 2))
        step = PaddedStep(num_tokens, num_decodes, 1, narrowest(mixed, num_tokens, num_decodes, 1))
        assert most_missed(sizes, [step]) is None
        num_decodes += 1
        assert (
            most_missed(
                sizes, [PaddedStep(num_decodes, num_decodes, 0, narrowest(decodes, num_decodes, num_decodes, 0))]
            )
            is None
        )
