"""From the settings to the storage, with the tables of all its users."""

from __future__ import annotations

from service.batch_jobs.batch_table import BATCHES
from service.finetune.job_table import JOBS
from service.settings.settings import Settings
from service.storage.database import Schema
from service.storage.storage import Storage

SCHEMAS: tuple[Schema, ...] = (BATCHES, JOBS)
"""The tables besides that of the files."""


def make_storage(settings: Settings) -> Storage:
    """Nothing is opened yet."""
    return Storage(settings.data_folder(), settings.max_storage_bytes(), SCHEMAS)
