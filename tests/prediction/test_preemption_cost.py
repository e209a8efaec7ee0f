from __future__ import annotations

import pytest

from service.core.iteration import IterationPlan
from service.prediction.iteration_time import IterationTime
from service.prediction.preemption_cost import PreemptionCost, Recovery, RecoveryCosts
from service.prediction.swap_time import Copies, SwapTime
from service.prediction.workload import Workload, num_attended_pairs
from service.scheduler.preemption import AdaptivePreemption
from tests.scheduler.test_request_pool import make_group

NOBODY = Workload.of(IterationPlan(()))
OTHERS = Workload.of_decodes(40, 4000)
TOKEN_S = 2e-5


def make_cost(*, max_tokens: int = 2048, block_s: float = 1e-4, added_share: float = 1.0) -> PreemptionCost:
    """Iterations of 4 ms and TOKEN_S a token, and blocks that take `block_s` each way."""
    iteration_time, swap_time = IterationTime(), SwapTime()
    for start in (0, 512, 2048):
        for num_tokens in (2, 64, 256, 1024, 2048):
            workload = Workload.of_chunk(start, num_tokens)
            iteration_time.calibrate(workload, seconds_of(start, num_tokens))
    for num_decodes in (1, 40):
        decodes = Workload.of_decodes(num_decodes, 100 * num_decodes)
        iteration_time.calibrate(decodes, 4e-3 + TOKEN_S * num_decodes)
    iteration_time.fit()
    for to_host in (True, False):
        for num_blocks in (1, 2, 100):
            swap_time.observe(Copies(to_host, num_blocks), num_blocks * block_s)
    swap_time.added_share = added_share
    return PreemptionCost(iteration_time, swap_time, max_tokens)


def seconds_of(start: int, num_tokens: int) -> float:
    return 4e-3 + TOKEN_S * num_tokens + 1e-9 * num_attended_pairs(start, num_tokens)


def costs_of(
    cost: PreemptionCost, num_tokens: int, num_kept: int = 0, num_blocks: int = 1, beside: Workload = NOBODY
) -> tuple[float, float]:
    recompute_s, swap_s = cost.predict(num_tokens, num_kept, num_blocks, beside)
    assert recompute_s is not None
    assert swap_s is not None
    return recompute_s, swap_s


def recompute_s(cost: PreemptionCost, num_tokens: int, num_kept: int = 0, beside: Workload = NOBODY) -> float:
    return costs_of(cost, num_tokens, num_kept, beside=beside)[0]


def swap_s(cost: PreemptionCost, num_blocks: int, beside: Workload = NOBODY) -> float:
    return costs_of(cost, 100, num_blocks=num_blocks, beside=beside)[1]


def test_recomputing_with_nothing_beside_is_one_prefill():
    assert recompute_s(make_cost(), 777) == pytest.approx(seconds_of(0, 777), rel=1e-3)


def test_a_long_cache_is_recomputed_in_chunks():
    expected = seconds_of(0, 2048) + seconds_of(2048, 952)
    assert recompute_s(make_cost(), 3000) == pytest.approx(expected, rel=1e-3)


def test_what_rides_along_costs_what_it_adds():
    added_s = seconds_of(0, 24) - seconds_of(0, 0)
    assert recompute_s(make_cost(), 24, beside=OTHERS) == pytest.approx(added_s, rel=1e-2)


def test_chunks_have_the_room_that_decodes_leave_and_each_but_the_last_lets_its_owner_wait():
    cost = make_cost(max_tokens=140)
    added_s = seconds_of(0, 250) - seconds_of(0, 0)
    waits_s = 2 * (4e-3 + 40 * TOKEN_S) / 40
    assert recompute_s(cost, 250, beside=OTHERS) == pytest.approx(added_s + waits_s, rel=1e-2)


def test_what_others_keep_in_the_prefix_cache_is_not_computed_again():
    cost = make_cost()
    for beside in (NOBODY, OTHERS):
        whole_s, rest_s = recompute_s(cost, 1000, beside=beside), recompute_s(cost, 1000, 600, beside)
        assert 0 < rest_s < whole_s
        assert recompute_s(cost, 500, num_kept=600, beside=beside) == 0
    assert recompute_s(cost, 1000, 600) == pytest.approx(seconds_of(600, 400), rel=1e-3)


@pytest.mark.parametrize("beside", [NOBODY, OTHERS])
def test_more_tokens_and_more_blocks_never_cost_less(beside: Workload):
    cost = make_cost(max_tokens=512, added_share=0.3)
    by_tokens = [recompute_s(cost, num_tokens, beside=beside) for num_tokens in range(0, 3000, 97)]
    by_blocks = [swap_s(cost, num_blocks, beside) for num_blocks in range(1, 100, 7)]
    assert by_tokens == sorted(by_tokens)
    assert by_blocks == sorted(by_blocks)
    assert by_tokens[0] == 0 < by_tokens[1]


def test_with_nothing_beside_all_wait_for_the_copies():
    assert swap_s(make_cost(block_s=1e-4, added_share=0.0), 5) == pytest.approx(2 * 5e-4)


def test_copies_beside_an_iteration_cost_their_share_and_a_token_each_way():
    token_s = (4e-3 + 40 * TOKEN_S) / 40
    for share in (0.0, 0.2, 1.0):
        expected = share * 2 * 5e-4 + 2 * token_s
        assert swap_s(make_cost(block_s=1e-4, added_share=share), 5, OTHERS) == pytest.approx(expected, rel=1e-2)


def test_copies_that_outlast_iterations_keep_their_blocks_for_as_many():
    token_s = (4e-3 + 40 * TOKEN_S) / 40
    cost = make_cost(block_s=1e-3, added_share=0.0)
    assert swap_s(cost, 12, OTHERS) == pytest.approx(2 * 3 * token_s, rel=1e-2)  # of 4.8 ms


@pytest.mark.parametrize(
    ("block_s", "share", "cheaper"),
    [(2e-4, 1.0, Recovery.RECOMPUTE), (1e-6, 0.0, Recovery.SWAP), (2e-4, 0.0, Recovery.SWAP)],
)
def test_adaptive_compares_what_each_adds(block_s: float, share: float, cheaper: Recovery):
    """24 tokens in 2 blocks: 4.5 ms by themselves, 0.48 beside decodes; the copies take 0.8 ms where they count."""
    costs = make_cost(block_s=block_s, added_share=share).predict(24, 0, 2, OTHERS)
    assert AdaptivePreemption().choose(make_group("a"), costs) is cheaper


def test_nothing_is_known_before_anything_was_seen():
    cost = PreemptionCost(IterationTime(), SwapTime(), 2048)
    for beside in (NOBODY, OTHERS):
        assert cost.predict(100, 0, 7, beside) == RecoveryCosts(None, None)
