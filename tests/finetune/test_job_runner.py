from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from service.core.training import TrainingInterrupted
from service.errors import InvalidRequest
from service.finetune.job import Job, JobStatus
from service.finetune.job_faults import JobFault
from service.storage.listing import PageQuery
from tests.finetune.job_scene import BASE, CLIENT, DATA, NUM_STEPS, JobScene, job_scene

Scene = Callable[[JobScene], Awaitable[None]]


def play(folder: Path, scene: Scene, **options: object) -> None:
    async def whole() -> None:
        async with job_scene(folder, **options) as made:
            await scene(made)

    asyncio.run(whole())


def test_a_job_goes_from_its_file_to_a_model_that_is_served(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        made.engine.go()
        job = await made.until(await made.job(suffix="facts"), JobStatus.SUCCEEDED)
        assert job.fine_tuned_model == f"ft:base:headrace:facts:{job.job_id[6:18]}"
        assert (made.names.folders[job.fine_tuned_model] / "adapter").read_text() == str(NUM_STEPS)
        assert (job.num_steps_done, job.num_trained_tokens) == (NUM_STEPS, 10 * NUM_STEPS)
        messages = await made.messages(job)
        assert messages[:2] == [
            f"Created fine-tuning job: {job.job_id}",
            f"Validating training file: {job.spec.training_file}",
        ]
        assert [text for text in messages if text.startswith("Step 4/")] == [
            "Step 4/12: training loss=0.2500, validation loss=0.7000"
        ]
        assert messages[-2:] == [
            f"New fine-tuned model created: {job.fine_tuned_model}",
            "The job has successfully completed",
        ]
        assert [report.step for report in made.reports] == list(range(1, NUM_STEPS + 1))

    play(tmp_path, scene)


def test_a_job_tells_what_was_cut_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async def scene(made: JobScene) -> None:
        monkeypatch.setattr(made.work, "validate", lambda *_: replace(DATA, num_truncated=3, num_left_out=1))
        made.engine.go()
        job = await made.until(await made.job(), JobStatus.SUCCEEDED)
        assert (
            "Files validated, moving job to queued state: 4 examples, 100 tokens, 12 steps; 3 examples were cut at 512 "
            "tokens; 1 examples were left out, since none of the tokens before that is trained"
        ) in await made.messages(job)

    play(tmp_path, scene)


def test_jobs_are_trained_one_at_a_time_in_the_order_they_came(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        jobs = [await made.job() for _ in range(3)]
        made.engine.go()
        done = [await made.until(job, JobStatus.SUCCEEDED) for job in jobs]
        assert len(made.engine.trainings) == 3
        assert len(made.names.folders) == 9
        assert [job.finished_at for job in done] == sorted(job.finished_at for job in done if job.finished_at)

    play(tmp_path, scene)


def test_a_bad_file_ends_its_job_alone_and_says_why(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        made.engine.go()
        bad, good = await made.job(b'{"bad": 1}'), await made.job()
        failed = await made.until(bad, JobStatus.FAILED)
        assert failed.error is not None
        assert (failed.error.code, failed.error.param) == ("invalid_training_file", "training_file")
        assert (await made.messages(failed))[-1] == "The job failed: line 1: is bad"
        await made.until(good, JobStatus.SUCCEEDED)

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("where", "fault", "code"),
    [
        ("validate", MemoryError(), "out_of_memory"),
        ("prepare", JobFault("damaged_checkpoint", "the checkpoint is cut short"), "damaged_checkpoint"),
        ("save", OSError(errno.ENOSPC, "no space"), "storage_full"),
        ("export", OSError(errno.ENOSPC, "no space"), "storage_full"),
        ("export", KeyError("secret"), "server_error"),
        ("engine", JobFault("not_finite", "the loss is not finite"), "not_finite"),
    ],
)
def test_whatever_fails_ends_that_job_and_the_next_one_goes_on(tmp_path: Path, where: str, fault: Exception, code: str):
    async def scene(made: JobScene) -> None:
        if where == "engine":
            made.engine.fault, made.engine.fault_at = fault, 5
        else:
            made.work.fault_of[where] = fault
        made.engine.go()
        failed = await made.until(await made.job(), JobStatus.FAILED)
        assert failed.error is not None
        assert failed.error.code == code
        assert "secret" not in failed.error.message
        await made.until_true(lambda: made.engine.num_running == 0)
        made.work.fault_of.clear()
        made.engine.fault = None
        await made.until(await made.job(), JobStatus.SUCCEEDED)
        await made.until_true(lambda: not list((tmp_path / "jobs").glob("*")))

    play(tmp_path, scene)


def test_what_is_stored_is_bounded_and_given_back(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        made.engine.go()
        failed = await made.until(await made.job(), JobStatus.FAILED)
        assert failed.error is not None
        assert failed.error.code == "storage_full"
        assert made.storage.budget.num_bytes == 3

    play(tmp_path, scene, max_bytes=3)


def test_a_paused_job_goes_on_where_it_was(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        job, other = await made.job(), await made.job()
        made.engine.go(7)
        await made.until_true(lambda: len(made.reports) == 7)
        assert (await made.jobs.change(job.job_id, Job.paused)).status is JobStatus.PAUSED
        made.engine.go()
        await made.until(other, JobStatus.SUCCEEDED)
        paused = await made.jobs.get(job.job_id, CLIENT)
        assert (paused.status, paused.num_steps_done) == (JobStatus.PAUSED, 7)
        await made.jobs.change(job.job_id, Job.resumed)
        done = await made.until(job, JobStatus.SUCCEEDED)
        assert [training.first for training in made.engine.trainings] == [0, 0, 7], "not a step is lost"
        assert done.num_trained_tokens == 10 * NUM_STEPS
        steps = [text for text in await made.messages(done) if text.startswith("Step")]
        assert len(steps) == len(set(steps)) == NUM_STEPS

    play(tmp_path, scene)


@pytest.mark.parametrize("num_steps", [0, 3])
def test_a_cancelled_job_ends_and_leaves_nothing_but_its_checkpoints(tmp_path: Path, num_steps: int):
    async def scene(made: JobScene) -> None:
        job = await made.job()
        made.engine.go(num_steps)
        await made.until_true(lambda: len(made.engine.trainings) == 1 and len(made.reports) == num_steps)
        with pytest.raises(InvalidRequest, match="in use by a job that has not ended"):
            await made.storage.files.delete(job.spec.training_file, CLIENT)
        await made.jobs.change(job.job_id, lambda now: now.cancelled(1))
        await made.until_true(lambda: made.engine.num_running == 0)
        await made.until_true(lambda: not list((tmp_path / "jobs").glob("*")))
        await made.storage.files.delete(job.spec.training_file, CLIENT)
        assert (await made.jobs.get(job.job_id, CLIENT)).status is JobStatus.CANCELLED
        made.engine.go()
        await made.until(await made.job(), JobStatus.SUCCEEDED)

    play(tmp_path, scene)


def test_a_job_that_is_cancelled_while_its_file_is_read_stays_cancelled(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        made.work.is_open.clear()
        job = await made.job()
        await made.until_true(lambda: made.runner._validated == job.job_id)
        await made.jobs.change(job.job_id, lambda now: now.cancelled(1))
        await made.until_true(lambda: not made.runner._held)  # the reading has been stopped
        made.work.is_open.set()
        made.engine.go()
        await made.until(await made.job(), JobStatus.SUCCEEDED)
        assert (await made.jobs.get(job.job_id, CLIENT)).status is JobStatus.CANCELLED

    play(tmp_path, scene)


def test_after_a_restart_models_are_there_and_jobs_go_on(tmp_path: Path):
    ids: dict[str, Job] = {}

    async def before(made: JobScene) -> None:
        made.engine.go(NUM_STEPS)
        ids["done"] = await made.until(await made.job(), JobStatus.SUCCEEDED)
        ids["ran"] = await made.job()
        made.engine.go(7)
        await made.until_true(lambda: len(made.reports) == NUM_STEPS + 7)
        await made.until_true(lambda: made.folders.checkpoint(ids["ran"].job_id).exists())
        ids["queued"] = await made.until(await made.job(), JobStatus.QUEUED)

    async def after(made: JobScene) -> None:
        await made.until_true(lambda: ids["done"].fine_tuned_model in made.names.folders)
        made.engine.go()
        for name in ("ran", "queued"):
            await made.until(ids[name], JobStatus.SUCCEEDED)
        assert made.engine.trainings[0].first == 7, "it was stopped in order"
        job = await made.jobs.get(ids["ran"].job_id, CLIENT)
        assert job.num_trained_tokens == 10 * NUM_STEPS
        steps = [text for text in await made.messages(job) if text.startswith("Step")]
        assert len(steps) == len(set(steps)) == NUM_STEPS

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_defect_of_ours_is_not_the_end_of_all_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.finetune.job_runner._TRY_AGAIN_S", 0.01)

    async def scene(made: JobScene) -> None:
        failures, fail = [KeyError("defect"), KeyError("defect")], made.runner._fail

        async def failing(*arguments: object) -> None:
            if failures:
                raise failures.pop()
            await fail(*arguments)

        monkeypatch.setattr(made.runner, "_fail", failing)
        made.engine.go()
        await made.until(await made.job(b'{"bad": 1}'), JobStatus.FAILED)
        await made.until(await made.job(), JobStatus.SUCCEEDED)
        assert not failures

    play(tmp_path, scene)


def test_an_engine_that_ends_ends_no_job(tmp_path: Path):
    async def before(made: JobScene) -> None:
        made.engine.fault, made.engine.fault_at = TrainingInterrupted("the engine has ended"), 6
        made.engine.go()
        job = await made.job()
        await made.until_true(lambda: bool(made.engine.trainings) and made.engine.num_running == 0)
        await made.until_true(lambda: made.folders.checkpoint(job.job_id).exists())

    async def after(made: JobScene) -> None:
        made.engine.go()
        job = (await made.jobs.list(CLIENT, {}, PageQuery(None, 1, False))).items[0]
        await made.until(job, JobStatus.SUCCEEDED)

    play(tmp_path, before)
    play(tmp_path, after)


def test_another_base_model_goes_on_with_no_job_and_serves_no_model_of_the_first(tmp_path: Path):
    ids: dict[str, Job] = {}

    async def before(made: JobScene) -> None:
        made.engine.go(NUM_STEPS)
        ids["done"] = await made.until(await made.job(), JobStatus.SUCCEEDED)
        ids["queued"] = await made.job()
        await made.until(ids["queued"], JobStatus.RUNNING)

    async def after(made: JobScene) -> None:
        failed = await made.until(ids["queued"], JobStatus.FAILED)
        assert failed.error is not None
        assert failed.error.code == "base_model_changed"
        assert made.names.folders == {}

    async def again(made: JobScene) -> None:
        await made.until_true(lambda: ids["done"].fine_tuned_model in made.names.folders)

    play(tmp_path, before)
    play(tmp_path, after, base=replace(BASE, weights="weights-2"))
    play(tmp_path, again)
