from __future__ import annotations

import math
import random
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.iteration import GrownTables, IterationPlan, ScheduledDecodes
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.prediction.device_heat import slowed_s
from service.prediction.iteration_time import MIN_OBSERVED, IterationTime, PaddedSize, StepSize
from service.prediction.workload import Workload, num_attended_pairs


def device_s(workload: Workload) -> float:
    """A device that waits for memory up to 256 tokens and computes beyond."""
    compute_s = 2e-5 * max(0, workload.num_tokens - 256)
    return 5e-3 + 1e-6 * workload.num_tokens + compute_s + 1e-9 * workload.num_pairs + 3e-8 * workload.num_read


def some_workloads(count: int, seed: int) -> list[Workload]:
    chance = random.Random(seed)
    workloads = []
    for _ in range(count):
        decodes, chunk, start = chance.randint(0, 256), chance.randint(2, 2048), chance.randint(0, 4096)
        read = decodes * chance.randint(100, 2000)
        workloads.append(Workload.of_chunk(start, chunk, decodes, read))
    return workloads


def learnt(noise: float = 0.0) -> IterationTime:
    chance = random.Random(3)
    iteration_time = IterationTime()
    for workload in some_workloads(200, 0):
        seconds = device_s(workload) * (1 + chance.uniform(-noise, noise))
        iteration_time.observe(workload, seconds, is_decode=False)
    for decodes in range(1, 256, 8):
        workload = Workload(decodes, 0, decodes * 1000, 0, decodes, 0)
        iteration_time.observe(workload, device_s(workload) * (1 + chance.uniform(-noise, noise)), is_decode=True)
    return iteration_time


@given(st.integers(0, 500), st.integers(0, 500))
def test_pairs_are_counted_as_defined(start: int, num_tokens: int):
    assert num_attended_pairs(start, num_tokens) == sum(start + i + 1 for i in range(num_tokens))


def test_a_device_with_a_knee_is_learnt():
    iteration_time = learnt()
    for workload in some_workloads(50, 1):
        assert iteration_time.predicted_s(workload) == pytest.approx(device_s(workload), rel=1e-3)


def test_noise_of_three_percent_costs_less_than_two():
    iteration_time = learnt(noise=0.03)
    errors = [abs(iteration_time.predicted_s(w) / device_s(w) - 1) for w in some_workloads(50, 1)]
    assert sum(errors) / len(errors) < 0.02


def test_nothing_is_predicted_before_enough_was_seen():
    iteration_time = IterationTime()
    for workload in some_workloads(MIN_OBSERVED - 1, 0):
        iteration_time.calibrate(workload, 1.0)
    iteration_time.fit()
    assert iteration_time.predicted_s(Workload.of_chunk(0, 6)) is None
    iteration_time.calibrate(Workload(5, 15, 0, 5, 0, 1), 1.0)
    iteration_time.fit()
    assert iteration_time.predicted_s(Workload.of_chunk(0, 6)) is not None


def test_an_iteration_of_a_kind_that_was_not_seen_takes_no_less_than_the_shortest_that_was():
    iteration_time = IterationTime()
    for context in range(64, 128):  # as if nothing else had a price
        iteration_time.observe(Workload.of_chunk(context - 32, 32), 1e-4 * context, is_decode=False)
    iteration_time.fit()
    for workload in (Workload(9, 0, 900, 0, 9, 0), Workload(0, 0, 0, 0, 0, 0)):
        assert iteration_time.predicted_s(workload) == pytest.approx(64e-4)
    assert iteration_time.predicted_s(Workload.of_chunk(88, 32)) == pytest.approx(120e-4, rel=0.01)


def test_a_machine_that_has_become_slower_is_noticed():
    iteration_time = learnt()
    for workload in some_workloads(1500, 5):
        iteration_time.observe(workload, 2 * device_s(workload), is_decode=False)
    for decodes in range(1, 256):
        workload = Workload(decodes, 0, decodes * 1000, 0, decodes, 0)
        for _ in range(4):
            iteration_time.observe(workload, 2 * device_s(workload), is_decode=True)
    for workload in some_workloads(20, 6):
        assert iteration_time.predicted_s(workload) == pytest.approx(2 * device_s(workload), rel=0.05)


SIZES = (32, 64, 128, 256, 512, 1024, 2048)


def padded_size(num_tokens: int, num_decodes: int, num_prompts: int) -> StepSize:
    return next(size for size in SIZES if size >= num_tokens), -(-num_decodes // 32) * 32


def staircase_s(workload: Workload) -> float:
    """A device with CUDA graphs, whose tiles fit some sizes better than others."""
    size, num_decodes = padded_size(workload.num_tokens, workload.num_decodes, 1)
    off_the_law = 1 + 0.06 * math.sin(size)
    attention_s = 1e-9 * workload.num_pairs + 5e-7 * workload.longest_context + 8e-6 * num_decodes
    return off_the_law * device_s(Workload(size, 0, workload.num_read, 0, 0, 1)) + attention_s


def calibrated(padded: PaddedSize | None) -> IterationTime:
    iteration_time = IterationTime(padded)
    for size in SIZES:
        for start in (0, 2048):
            workload = Workload.of_chunk(start, size)
            iteration_time.calibrate(workload, staircase_s(workload))
    for num_decodes in (16, 100):
        for num_read in (num_decodes, 300 * num_decodes):
            workload = Workload.of_chunk(0, 24, num_decodes, num_read)
            iteration_time.calibrate(workload, staircase_s(workload))
    iteration_time.fit()
    return iteration_time


def mean_error(iteration_time: IterationTime, num_decodes: int = 0) -> float:
    lengths = (24, 48, 96, 200, 400, 700, 1000, 1500, 1900)
    workloads = [Workload.of_chunk(0, n, num_decodes, 100 * num_decodes) for n in lengths]
    return fmean(abs(iteration_time.predicted_s(w) / staircase_s(w) - 1) for w in workloads)


def test_a_staircase_is_followed_where_the_padding_is_known():
    iteration_time = calibrated(padded_size)
    assert mean_error(iteration_time) < 0.01
    assert mean_error(iteration_time, num_decodes=60) < 0.02
    assert mean_error(calibrated(None)) > 0.1, "and cannot be without"


def test_a_size_that_was_not_timed_is_learnt_from_traffic():
    iteration_time = calibrated(padded_size)
    workload = Workload.of_chunk(0, 90)
    for _ in range(30):
        iteration_time.observe(workload, 1.2 * staircase_s(workload), is_decode=False)
    assert iteration_time.predicted_s(workload) == pytest.approx(1.2 * staircase_s(workload), rel=0.01)
    larger = Workload.of_chunk(0, 1000)
    assert iteration_time.predicted_s(larger) == pytest.approx(staircase_s(larger), rel=0.1)


def test_one_iteration_in_which_something_else_happened_counts_little():
    iteration_time = calibrated(padded_size)
    workload = Workload.of_chunk(0, 90)
    for _ in range(10):
        iteration_time.observe(workload, staircase_s(workload), is_decode=False)
    iteration_time.observe(workload, 9 * staircase_s(workload), is_decode=False)
    assert iteration_time.predicted_s(workload) == pytest.approx(staircase_s(workload), rel=0.05)


def test_new_coefficients_leave_what_a_size_was_seen_to_take():
    iteration_time = calibrated(padded_size)
    seen, other = Workload.of_chunk(0, 90), Workload.of_chunk(0, 900)
    for _ in range(10):
        iteration_time.observe(seen, 1.2 * staircase_s(seen), is_decode=False)
        iteration_time.observe(other, 0.9 * staircase_s(other), is_decode=False)
    before = [iteration_time.predicted_s(workload) for workload in (seen, other)]
    iteration_time.fit()
    assert [iteration_time.predicted_s(workload) for workload in (seen, other)] == pytest.approx(before, rel=1e-9)


def test_steps_that_are_not_padded_share_a_correction_with_those_about_as_large():
    iteration_time = calibrated(
        lambda tokens, decodes, prompts: None if prompts > 16 else padded_size(tokens, decodes, 1)
    )
    eager = Workload(264, 2000, 1400, 36, 38, 17)
    larger, padded = eager._replace(num_tokens=300), eager._replace(num_prompts=4)
    by_law = [iteration_time.predicted_s(workload) for workload in (eager, larger, padded)]
    for _ in range(30):
        iteration_time.observe(eager, 2 * by_law[0], is_decode=False)
    now = [iteration_time.predicted_s(workload) for workload in (eager, larger, padded)]
    assert now[:2] == pytest.approx([2 * by_law[0], 2 * by_law[1]], rel=0.1)
    assert now[2] < 1.2 * by_law[2]


def test_the_workload_of_a_plan():
    params = SamplingParams(max_tokens=1)

    def share(sequence_id: int, num_tokens: int, start: int) -> ScheduledSequence:
        return ScheduledSequence(sequence_id, 1 + sequence_id, (0,) * num_tokens, start, 0, (), params, ())

    plan = IterationPlan((share(0, 1, 99), share(1, 1, 9), share(2, 4, 2)))
    assert Workload.of(plan) == Workload(6, 3 + 4 + 5 + 6, 110, 6, 2, 1)


def test_a_decode_counts_the_same_in_columns_and_by_itself():
    params = SamplingParams(max_tokens=9)
    one_by_one = tuple(ScheduledSequence(i, 1 + i, (5,), 8 + i, 0, (i,), params, ()) for i in range(3))
    ids, none = np.arange(3), np.arange(0)
    columns = ScheduledDecodes(1, ids, 1 + ids, ids, 8 + ids, np.ones_like(ids), 3, GrownTables(none, none, none))
    in_columns = IterationPlan((), decodes=columns)
    assert Workload.of(in_columns) == Workload.of(IterationPlan(one_by_one)) == Workload(3, 0, 30, 0, 3, 0)


def test_a_size_that_was_not_seen_is_as_far_off_the_law_as_one_of_as_many_tokens():
    iteration_time = calibrated(padded_size)
    alone, beside_decodes = Workload.of_chunk(0, 1000), Workload.of_chunk(0, 900, 60, 6000)
    before = iteration_time.predicted_s(beside_decodes)
    for _ in range(30):
        iteration_time.observe(alone, 1.1 * staircase_s(alone), is_decode=False)
    assert iteration_time.predicted_s(beside_decodes) == pytest.approx(1.1 * before, rel=0.02)
    for _ in range(30):
        iteration_time.observe(beside_decodes, 0.9 * before, is_decode=False)
    assert iteration_time.predicted_s(beside_decodes) == pytest.approx(0.9 * before, rel=0.01)
    assert iteration_time.predicted_s(alone) == pytest.approx(1.1 * staircase_s(alone), rel=0.02), (
        "the one keeps its own"
    )


def test_decodes_share_nothing_with_prompts_of_as_many_tokens():
    iteration_time = IterationTime(lambda num_tokens, num_decodes, num_prompts: (64, 0 if num_prompts else 64))
    for num_tokens in range(2, 60):
        iteration_time.calibrate(Workload.of_chunk(0, num_tokens), 0.01)
    iteration_time.fit()
    decodes = Workload(60, 0, 6000, 0, 60, 0)
    for _ in range(20):
        iteration_time.observe(decodes, 0.005, is_decode=True)
    assert iteration_time.predicted_s(decodes) == pytest.approx(0.005, rel=0.01)
    assert iteration_time.predicted_s(Workload.of_chunk(0, 40)) == pytest.approx(0.01, rel=0.01)


def heated_s(workload: Workload) -> float:
    """A device that computes 14 % slower under full heat."""
    seconds = device_s(workload)
    return seconds + 0.14 * slowed_s(workload.heat, seconds)


def test_what_heat_costs_is_learnt():
    chance = random.Random(2)
    iteration_time = IterationTime()
    for workload in some_workloads(200, 0):
        hot = workload._replace(heat=chance.choice((0.0, chance.random())))
        iteration_time.calibrate(hot, heated_s(hot))
    iteration_time.fit()
    for workload in some_workloads(50, 1):
        for heat in (0.0, 0.3, 0.9):
            hot = workload._replace(heat=heat)
            assert iteration_time.predicted_s(hot) == pytest.approx(heated_s(hot), rel=0.005)
