"""What comes of a training; tests/finetune/test_job_runner.py has how it begins and ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import ModelNotFound
from service.finetune.job import JobStatus
from service.storage.listing import PageQuery
from tests.finetune.job_scene import CLIENT, NUM_STEPS, JobScene
from tests.finetune.test_job_runner import play

ALL = PageQuery(None, 100, True)


@pytest.mark.parametrize("state_every", [1, 2, 4])
def test_an_epochs_end_is_a_checkpoint_that_can_be_called(tmp_path: Path, state_every: int):
    async def scene(made: JobScene) -> None:
        made.engine.state_every = state_every
        made.engine.go()
        job = await made.until(await made.job(), JobStatus.SUCCEEDED)
        found = (await made.jobs.checkpoints(job, ALL)).items
        names = [f"{job.fine_tuned_model}:ckpt-step-4", f"{job.fine_tuned_model}:ckpt-step-8", job.fine_tuned_model]
        assert [(each.step, each.model) for each in found] == list(zip((4, 8, 12), names, strict=True))
        assert list(made.names.folders) == names
        assert [(made.names.folders[name] / "adapter").read_text() for name in names] == ["4", "8", "12"]
        assert found[0].metrics["train_loss"] == 0.25 and found[0].metrics["full_valid_loss"] == 0.7

    play(tmp_path, scene)


def test_the_last_epochs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.finetune.job_training.KEPT_MODELS", 1)

    async def scene(made: JobScene) -> None:
        made.engine.go()
        job = await made.until(await made.job(), JobStatus.SUCCEEDED)
        await made.until_true(lambda: list(made.names.folders) == [job.fine_tuned_model])
        assert len((await made.jobs.checkpoints(job, ALL)).items) == 1
        await made.until_true(lambda: len(list((tmp_path / "models").iterdir())) == 1)

    play(tmp_path, scene)


def test_a_checkpoint_can_be_deleted_while_the_job_runs(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        job = await made.job()
        made.engine.go(6)
        await made.until_true(lambda: len(made.names.folders) == 1)
        name = next(iter(made.names.folders))
        await made.models.delete(name, CLIENT)
        with pytest.raises(ModelNotFound):
            await made.models.delete(name, CLIENT)
        made.engine.go()
        done = await made.until(job, JobStatus.SUCCEEDED)
        assert [each.step for each in (await made.jobs.checkpoints(done, ALL)).items] == [8, 12]

    play(tmp_path, scene)


def test_a_running_job_says_when_it_will_be_ready(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        job = await made.job()
        made.engine.go(3)
        await made.until_true(lambda: len(made.reports) == 3)

        async def has_estimate() -> bool:
            now = await made.jobs.get(job.job_id, CLIENT)
            return now.estimated_finish is not None and now.estimated_finish >= job.created_at

        await made.until_true(has_estimate)
        made.engine.go()
        assert (await made.until(job, JobStatus.SUCCEEDED)).estimated_finish is None

    play(tmp_path, scene)


def test_an_engine_that_ends_by_itself_fails_the_job(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        job = await made.job()
        await made.until_true(lambda: made.engine.num_running == 1)
        made.engine.stop_training(made.engine.trainings[0].training_id)
        failed = await made.until(job, JobStatus.FAILED)
        assert failed.error is not None and failed.error.code == "server_error"

    play(tmp_path, scene)


def test_all_steps_are_in_the_file_of_results(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        made.engine.go()
        job = await made.until(await made.job(), JobStatus.SUCCEEDED)
        file = await made.storage.files.get(job.result_files[0], CLIENT)
        assert (file.purpose, file.filename) == ("fine-tune-results", "step_metrics.csv")
        lines = made.storage.files.path_of(file).read_text().splitlines()
        assert [int(line.partition(",")[0]) for line in lines[1:]] == list(range(1, NUM_STEPS + 1))

    play(tmp_path, scene)
