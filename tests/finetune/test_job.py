from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.finetune.hyperparameters import Hyperparameters
from service.finetune.job import IllegalTransition, Job, JobError, JobSpec, JobStatus, ValidatedData

NEW = Job("ftjob-1", "team", 100, "weights", JobSpec("base", "file-1"))
DATA = ValidatedData(Hyperparameters(learning_rate=0.001, num_epochs=2, batch_size=4), 10, 500, "digest")

CHANGES: dict[str, Callable[[Job], Job]] = {
    "validated": lambda job: job.validated(DATA),
    "started": Job.started,
    "interrupted": Job.interrupted,
    "paused": Job.paused,
    "resumed": Job.resumed,
    "succeeded": lambda job: job.succeeded("ft:base", (), 200),
    "failed": lambda job: job.failed(JobError("nan_loss", "not finite"), 200),
    "cancelled": lambda job: job.cancelled(200),
}
LEGAL = {
    JobStatus.VALIDATING_FILES: {"validated", "paused", "failed", "cancelled"},
    JobStatus.QUEUED: {"started", "paused", "failed", "cancelled"},
    JobStatus.RUNNING: {"interrupted", "paused", "succeeded", "failed", "cancelled"},
    JobStatus.PAUSED: {"resumed", "succeeded", "failed", "cancelled"},
    JobStatus.SUCCEEDED: set(),
    JobStatus.FAILED: set(),
    JobStatus.CANCELLED: set(),
}
"""Written down a second time, by what happens instead of by what comes of it."""


@given(names=st.lists(st.sampled_from(sorted(CHANGES)), max_size=30))
def test_only_legal_changes_happen_and_the_others_change_nothing(names: list[str]):
    job = NEW
    for name in names:
        if name in LEGAL[job.status]:
            job = CHANGES[name](job)
        else:
            with pytest.raises(IllegalTransition, match=job.status.value):
                CHANGES[name](job)


@given(names=st.lists(st.sampled_from(sorted(CHANGES)), max_size=30))
def test_a_job_that_runs_or_waits_for_its_turn_has_read_its_files(names: list[str]):
    job = NEW
    for name in names:
        if name in LEGAL[job.status]:
            job = CHANGES[name](job)
        if job.status in (JobStatus.QUEUED, JobStatus.RUNNING):
            assert job.data is not None


@given(names=st.lists(st.sampled_from(sorted(CHANGES)), max_size=30))
def test_an_end_is_final_and_says_when_and_why(names: list[str]):
    job = NEW
    for name in names:
        if name in LEGAL[job.status]:
            assert not job.status.is_final
            job = CHANGES[name](job)
    assert (job.finished_at is None) == (not job.status.is_final)
    assert (job.error is not None) == (job.status is JobStatus.FAILED)


def test_a_job_that_was_paused_before_its_files_were_read_has_them_read_when_it_is_resumed():
    assert NEW.paused().resumed().status is JobStatus.VALIDATING_FILES
    assert NEW.validated(DATA).paused().resumed().status is JobStatus.QUEUED


def test_how_far_it_came_outlives_a_pause_and_the_end_of_the_process():
    job = NEW.validated(DATA).started().progressed(3, 120, 999)
    assert job.estimated_finish == 999
    for again in (job.paused().resumed(), job.interrupted()):
        assert (again.num_steps_done, again.num_trained_tokens, again.estimated_finish) == (3, 120, None)


def test_an_end_is_not_changed_by_what_was_still_under_way():
    assert NEW.cancelled(200).progressed(3, 120, 999) == NEW.cancelled(200)


def test_the_last_step_of_an_epoch_counts():
    assert DATA.num_steps == 6
    assert replace(DATA, num_examples=12).num_steps == 6
