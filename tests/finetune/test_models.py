from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from service.errors import ModelNotFound, StorageFull
from service.finetune.job_table import JOBS, FineTunedModel, add_model, find_model
from service.storage.storage import Storage
from tests.finetune.job_scene import BASE, JobScene

MODEL = FineTunedModel("ft:base:headrace::1", "team", "ftjob-1", 8, "ftjob-1", BASE.weights, 0)


def play(folder: Path, scene: Callable[[JobScene], Awaitable[None]], max_bytes: int = 10**9) -> None:
    async def whole() -> None:
        made = JobScene(Storage(folder, max_bytes, (JOBS,)))
        try:
            await scene(made)
        finally:
            await made.storage.close()

    asyncio.run(whole())


def export(folder: Path) -> None:
    (folder / "adapter").write_bytes(b"x" * 10)


async def make(made: JobScene) -> FineTunedModel:
    model = await made.models.write(MODEL, export)
    await made.jobs.read(lambda connection: add_model(connection, model))
    made.models.publish(model)
    return model


def test_a_model_is_served_until_its_client_deletes_it(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        model = await make(made)
        assert (model.num_bytes, made.storage.budget.num_bytes) == (10, 10)
        assert (made.names.folders[MODEL.name] / "adapter").exists()
        with pytest.raises(ModelNotFound):
            await made.models.delete(MODEL.name, "others")
        assert MODEL.name in made.names.folders
        await made.models.delete(MODEL.name, "team")
        assert made.names.folders == {} and made.storage.budget.num_bytes == 0
        assert list((tmp_path / "models").iterdir()) == []
        with pytest.raises(ModelNotFound):
            await made.models.delete(MODEL.name, "team")

    play(tmp_path, scene)


def test_one_that_does_not_fit_or_cannot_be_written_leaves_nothing(tmp_path: Path):
    def fail(folder: Path) -> None:
        export(folder)
        raise OSError(errno.ENOSPC, "no space")

    async def scene(made: JobScene) -> None:
        for attempt, fault in ((export, StorageFull), (fail, OSError)):
            with pytest.raises(fault):
                await made.models.write(MODEL, attempt)
            assert list((tmp_path / "models").iterdir()) == []
            assert made.storage.budget.num_bytes == 0

    play(tmp_path, scene, max_bytes=9)


def test_what_an_earlier_process_left_is_served_and_what_it_did_not_finish_goes(tmp_path: Path):
    async def before(made: JobScene) -> None:
        await make(made)
        for left in ("ftjob-2", "ftjob-3.part"):
            (tmp_path / "models" / left).mkdir()

    async def after(made: JobScene) -> None:
        await made.models.recover()
        assert list(made.names.folders) == [MODEL.name]
        assert [entry.name for entry in (tmp_path / "models").iterdir()] == ["ftjob-1"]
        assert made.storage.budget.num_bytes == 10
        assert await made.jobs.read(lambda connection: find_model(connection, MODEL.name)) is not None

    play(tmp_path, before)
    play(tmp_path, after)


def test_a_folder_that_a_process_left_before_it_wrote_the_model_down_is_written_anew(tmp_path: Path):
    async def scene(made: JobScene) -> None:
        for left in ("ftjob-1", "ftjob-1.part"):
            (tmp_path / "models" / left).mkdir(parents=True)
            (tmp_path / "models" / left / "old").touch()
        await make(made)
        assert [entry.name for entry in (tmp_path / "models/ftjob-1").iterdir()] == ["adapter"]

    play(tmp_path, scene)
