"""The two files with a batch's results become files of its client."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

from service.batch_jobs.batch import Batch
from service.batch_jobs.batch_output import ANSWERS, ERRORS, BatchOutput, num_bytes_of, num_result_bytes
from service.storage.file_table import StoredFile
from service.storage.storage import Storage
from service.storage.upload import InThread

_logger = logging.getLogger(__name__)


async def hand_over(batch: Batch, folder: Path, storage: Storage, in_thread: InThread) -> Batch:
    """Returns the batch with the ids of the files; None for one that would be empty. Can be repeated after an
    interruption. folder: the batch's. The storage budget has their bytes already."""
    ids: list[str | None] = []
    for path, file_id, kind in (
        (folder / ANSWERS, batch.output_file_id, "output"),
        (folder / ERRORS, batch.error_file_id, "error"),
    ):
        assert file_id is not None
        num_bytes = await in_thread(partial(num_bytes_of, path))
        if num_bytes:
            now_s = int(time.time())
            expires_at = None if batch.output_expires_after_s is None else now_s + batch.output_expires_after_s
            name = f"{batch.batch_id}_{kind}.jsonl"
            file = StoredFile(file_id, batch.client, "batch_output", name, num_bytes, now_s, expires_at)
            await storage.files.adopt(path, file)
            ids.append(file_id)
        else:
            ids.append(None if await storage.files.find(file_id, batch.client) is None else file_id)
    return replace(batch, output_file_id=ids[0], error_file_id=ids[1])


async def salvage(batch: Batch, folder: Path, storage: Storage, in_thread: InThread) -> Batch:
    """As `hand_over`, for a batch that does not run. Counts its results, and their bytes in the storage budget, first;
    if it raises, the budget is as before, and what was not handed over is still in the folder."""
    batch = await in_thread(partial(_counted, batch, folder))
    storage.budget.note(await in_thread(partial(num_result_bytes, folder)))
    try:
        return await hand_over(batch, folder, storage, in_thread)
    except Exception:  # whatever it is: the next attempt counts the bytes again
        storage.budget.give_back(num_result_bytes(folder))
        raise


def _counted(batch: Batch, folder: Path) -> Batch:
    """With the numbers of lines that have results on disk, of which an incomplete last one is cut off."""
    if batch.is_written or not folder.exists():
        return batch
    output = BatchOutput(folder, batch.hex_id)
    try:
        found = output.recover()
    except OSError:
        raise
    except Exception:  # a bug, perhaps the one that ends the batch: the results are worth more than their number
        _logger.exception("%s: its results cannot be counted", batch.batch_id)
        return batch
    finally:
        output.close()
    return replace(batch, num_completed=found.num_completed, num_failed=found.num_failed)
