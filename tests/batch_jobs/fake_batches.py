"""Batches over a storage, without a server: a function stands for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from service.batch_jobs.batch import Batch
from service.batch_jobs.batch_jobs import BatchJobs
from service.batch_jobs.batch_output import Answer
from service.batch_jobs.batch_table import BATCHES
from service.storage.storage import Storage

ENDPOINT = "/v1/completions"
HOUR = ("1h", 3600)
Ask = Callable[[Batch, bytes], Awaitable[Answer]]


def lines(numbers: Sequence[int]) -> bytes:
    return b"\n".join(
        json.dumps({"custom_id": str(n), "method": "POST", "url": ENDPOINT, "body": {"n": n}}).encode() for n in numbers
    )


async def ok(batch: Batch, body: bytes) -> Answer:
    await asyncio.sleep(0)
    return Answer(200, "r", body)


def with_jobs(
    folder: Path,
    use: Callable[[Storage, BatchJobs], Coroutine[Any, Any, Any]],
    ask: Ask = ok,
    *,
    max_bytes: int = 10**8,
    most_lines: int = 16,
) -> Any:
    async def main() -> Any:
        storage = Storage(folder, max_bytes, (BATCHES,))
        jobs = BatchJobs(storage, ask, lambda num_running: most_lines)
        jobs.start()
        try:
            return await use(storage, jobs)
        finally:
            await jobs.close()
            await storage.close()

    return asyncio.run(main())


async def begin(storage: Storage, jobs: BatchJobs, content: bytes, window: tuple[str, int] = HOUR) -> Batch:
    file = await storage.files.add("ann", "batch", "in", content)
    return await jobs.create("ann", ENDPOINT, file.file_id, window, None, None)


async def ended(jobs: BatchJobs, batch_id: str, client: str = "ann") -> Batch:
    while not (batch := await jobs.get(batch_id, client)).is_over:
        await asyncio.sleep(0.01)
    return batch


async def told(storage: Storage, batch: Batch) -> list[dict[str, Any]]:
    """The lines of both its files."""
    found = list[dict[str, Any]]()
    for file_id in (batch.output_file_id, batch.error_file_id):
        if file_id is not None:
            path = storage.files.path_of(await storage.files.get(file_id, batch.client))
            found += [json.loads(text) for text in path.read_text().splitlines()]
    return found
