"""The models made by jobs: adapters in folders of the data directory, served by name."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from service.errors import ModelNotFound
from service.finetune.job_folders import size_of
from service.finetune.job_table import (
    FineTunedModel,
    all_models,
    delete_checkpoint,
    delete_model,
    find_model,
    models_of,
)
from service.storage.data_folder import sync_folder
from service.storage.database import Connection, Database
from service.storage.storage_budget import StorageBudget

_PART = ".part"


class AdapterNames(Protocol):
    """The part of the adapter registry that serves additional names."""

    def publish(self, name: str, folder: Path) -> None:
        """Serve the adapter in this folder under this name. It is read when a request asks for it."""
        ...

    def withdraw(self, name: str) -> None:
        """Stop serving it; live requests keep it."""
        ...


class FineTunedModels:
    """Event loop. Every method raises StorageUnavailable.

    folder: of all models. base_weights: digest of the served base model; other bases' models are kept, not served.
    in_thread: runs work in a thread.
    """

    def __init__(
        self,
        database: Database,
        folder: Path,
        budget: StorageBudget,
        adapters: AdapterNames,
        base_weights: str,
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
    ) -> None:
        self._database = database
        self._folder = folder
        self._budget = budget
        self._adapters = adapters
        self._base_weights = base_weights
        self._in_thread = in_thread

    async def recover(self) -> None:
        """Serve the models of earlier runs, and remove what these left unfinished. Call once, at start."""
        models = await self._database.run(all_models)
        await self._in_thread(partial(self._sweep, {model.folder for model in models}))
        for model in models:
            self._budget.num_bytes += model.num_bytes
            if model.base_weights == self._base_weights:
                self.publish(model)

    async def write(self, model: FineTunedModel, export: Callable[[Path], None]) -> FineTunedModel:
        """Write the model's folder, atomically and synced; it is not in the database and not served yet. Returns it
        with its size.

        export: writes into an empty folder. Raises StorageFull if it does not fit.
        """
        folder = self._folder / model.folder
        num_bytes = await self._in_thread(partial(self._write, folder, export))
        try:
            self._budget.take(num_bytes)
        except BaseException:
            await self._in_thread(partial(shutil.rmtree, folder, ignore_errors=True))
            raise
        return replace(model, num_bytes=num_bytes)

    async def of_job(self, job_id: str) -> list[FineTunedModel]:
        """The job's models, earliest first."""
        return await self._database.run(lambda connection: models_of(connection, job_id))

    def publish(self, model: FineTunedModel) -> None:
        self._adapters.publish(model.name, self._folder / model.folder)

    async def delete(self, name: str, client: str) -> None:
        """Raises ModelNotFound if there is none, or if it belongs to another client."""

        def find_and_delete(connection: Connection) -> FineTunedModel:
            model = find_model(connection, name)
            if model is None or model.client != client:
                raise ModelNotFound(f"You have no fine-tuned model '{name[:256]}'.", param="model")
            delete_model(connection, name)
            delete_checkpoint(connection, model.job_id, name)
            return model

        await self.forget(await self._database.run(find_and_delete))

    async def forget(self, model: FineTunedModel) -> None:
        """The model is not in the database (any more): stop serving it and remove its files."""
        self._adapters.withdraw(model.name)
        self._budget.give_back(model.num_bytes)
        await self._in_thread(partial(shutil.rmtree, self._folder / model.folder, ignore_errors=True))

    def _write(self, folder: Path, export: Callable[[Path], None]) -> int:
        part = folder.with_name(folder.name + _PART)
        for left in (part, folder):  # from a process that ended before it could record the model
            shutil.rmtree(left, ignore_errors=True)
        part.mkdir(mode=0o700, parents=True)
        try:
            export(part)
            sync_folder(part)
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        sync_folder(folder.parent)
        return size_of(folder)

    def _sweep(self, known: set[str]) -> None:
        if self._folder.is_dir():
            for entry in self._folder.iterdir():
                if entry.name not in known:
                    shutil.rmtree(entry, ignore_errors=True)
