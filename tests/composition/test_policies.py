from __future__ import annotations

from typing import get_args

import pytest

from service.composition.policies import (
    make_admission,
    make_chunk_budget,
    make_preemption,
    make_scheduling_policy,
    make_speculation,
    make_training_policy,
)
from service.config import SchedulerConfig
from service.kvcache.block_pool import BlockPool
from service.kvcache.swap_space import SwapSpace
from service.prediction.iteration_time import IterationTime
from service.scheduler.admission import OnDemandAdmission
from service.scheduler.chunk_budget import FixedBudget, InPieces, InterTokenTarget
from service.scheduler.deferred_batching import DeferredBatching
from service.scheduler.fairness import Fair
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.history import History
from service.scheduler.interleaved_training import InterleavedTraining
from service.scheduler.memory_forecast import ForecastAdmission, ReserveAdmission
from service.scheduler.preemption import AdaptivePreemption, AlwaysRecompute, AlwaysSwap
from service.scheduler.priority import ByPriority
from service.scheduler.speculation import Speculation
from service.scheduler.token_shares import TokenShares
from service.settings.settings import Settings

SCHEDULING = {"fcfs": FirstComeFirstServed, "priority": ByPriority, "fair": Fair, "shares": TokenShares}
ADMISSION = {"on-demand": OnDemandAdmission, "reserve": ReserveAdmission, "forecast": ForecastAdmission}
PREEMPTION = {"recompute": AlwaysRecompute, "swap": AlwaysSwap, "adaptive": AdaptivePreemption}


@pytest.mark.parametrize(
    ("setting", "made"),
    [("scheduling_policy", SCHEDULING), ("admission_policy", ADMISSION), ("preemption", PREEMPTION)],
)
def test_every_name_of_a_setting_is_here(setting: str, made: dict[str, type]):
    assert set(get_args(Settings.model_fields[setting].annotation)) == set(made)


def test_a_name_makes_the_policy_of_that_name():
    swap_space = SwapSpace(0, BlockPool(1))
    for name, kind in SCHEDULING.items():
        assert isinstance(make_scheduling_policy(Settings(scheduling_policy=name), History(), swap_space), kind)
    for name, kind in ADMISSION.items():
        assert isinstance(make_admission(Settings(admission_policy=name), 3, History()), kind)
    for name, kind in PREEMPTION.items():
        assert isinstance(make_preemption(Settings(preemption=name)), kind)


def test_an_inter_token_target_makes_the_budget_follow_it():
    assert isinstance(make_chunk_budget(Settings(), IterationTime(), 512, is_gpu=False), FixedBudget)
    assert isinstance(make_chunk_budget(Settings(), IterationTime(), 512, is_gpu=True), InPieces)
    targeted = make_chunk_budget(Settings(inter_token_target_ms=20), IterationTime(), 512, is_gpu=True)
    assert isinstance(targeted, InterTokenTarget)


def test_the_mode_and_the_bound_say_when_a_training_computes():
    deferred = make_training_policy(Settings(deferral_bound=0.5, inter_token_target_ms=20), IterationTime())
    assert isinstance(deferred, DeferredBatching)
    assert (deferred.admits(0.25, 0.2), deferred.admits(0.25, 0.3)) == (False, True)
    settings = Settings(finetuning_mode="interleaved", inter_token_target_ms=20)
    assert isinstance(make_training_policy(settings, IterationTime()), InterleavedTraining)


@pytest.mark.parametrize(
    ("num_seqs", "budget", "most_rows"), [(256, 512, 256), (1, 512, 4), (3, 4, 3)], ids=["many", "one seat", "small"]
)
def test_drafts_have_the_seats_that_are_free_and_leave_the_budget_a_token(num_seqs: int, budget: int, most_rows: int):
    config = SchedulerConfig(num_seqs, budget, 0.0, 1, 1)
    assert make_speculation(Settings(), config) is None
    settings = Settings(speculation="ngram", num_speculative_tokens=3)
    assert make_speculation(settings, config) == Speculation(3, most_rows)
