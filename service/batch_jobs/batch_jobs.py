"""All batches: running, waiting and ended ones."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from service.batch_jobs.batch import Batch, BatchStatus, InputError
from service.batch_jobs.batch_output import ANSWERS, ERRORS
from service.batch_jobs.batch_run import Ask, BatchRun
from service.batch_jobs.batch_table import (
    find_batch,
    insert_batch,
    list_batches,
    num_unfinished,
    unfinished_batches,
    update_batch,
)
from service.batch_jobs.result_files import salvage
from service.batch_jobs.seats import Seats
from service.batch_jobs.written_lines import WrittenLines
from service.core.watchers import Watchers
from service.errors import InvalidRequest, NotFound, RateLimited, StorageFull, StorageUnavailable
from service.storage.file_store import new_file_id
from service.storage.listing import Page, PageQuery
from service.storage.storage import Storage

_logger = logging.getLogger(__name__)
_MAX_RUNNING = 8
_THREADS = 3
"""Several, so that a batch whose file takes long to check does not delay the others."""
_MAX_UNFINISHED = 100
_RETRY_S = 30.0
_LOOK_EVERY_S = 1.0
_ID_BYTES = 12

T = TypeVar("T")


class BatchJobs:
    """Event loop. `start` resumes what an earlier run of the server has left; `close` leaves it for a later one.

    ask: answers a line. most_lines(num_running): how many lines may run now. lines_ended: by outcome, since start.
    """

    def __init__(self, storage: Storage, ask: Ask, most_lines: Callable[[int], int]) -> None:
        self._storage = storage
        self._ask = ask
        self._folder = storage.folder / "batches"
        self._seats = Seats(most_lines)
        self._thread = ThreadPoolExecutor(_THREADS, thread_name_prefix="headrace-batches")
        self._waiting: dict[str, Batch] = {}
        self._runs: dict[str, BatchRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.lines_ended = Counter[str]()
        self._watchers = Watchers()
        self._running_clients = Counter[str]()
        self._resuming: asyncio.Task[None] | None = None

    @property
    def num_lines_running(self) -> int:
        return self._seats.num_taken

    @property
    def num_lines_left(self) -> int:
        """Lines without an answer in running batches. Any thread."""
        return sum(run.batch.num_lines_left for run in list(self._runs.values()))

    def count(self) -> Counter[str]:
        """Unfinished batches by status. Any thread."""
        runs, waiting = list(self._runs.values()), list(self._waiting.values())
        return Counter(str(batch.status) for batch in (*(run.batch for run in runs), *waiting))

    def start(self) -> None:
        if self._storage.database.exists:
            self._resuming = asyncio.create_task(self._resume())

    async def create(
        self,
        client: str,
        endpoint: str,
        input_file_id: str,
        window: tuple[str, int],
        metadata: Mapping[str, str] | None,
        output_expires_after_s: int | None,
    ) -> Batch:
        """window: as the client wrote it, and in seconds. Raises NotFound, InvalidRequest, RateLimited."""
        file = await self._storage.files.find(input_file_id, client)
        if file is None:
            raise NotFound(f"No such File object: {input_file_id[:64]}", param="input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest(
                f"The purpose of the file must be 'batch', got {file.purpose!r}.", param="input_file_id"
            )
        now_s = int(time.time())
        batch = Batch(
            f"batch_{secrets.token_hex(_ID_BYTES)}",
            client,
            endpoint,
            input_file_id,
            window[0],
            now_s,
            now_s + window[1],
            new_file_id(),
            new_file_id(),
            output_expires_after_s,
            metadata,
        )
        if await self._storage.database.run(lambda connection: num_unfinished(connection, client)) >= _MAX_UNFINISHED:
            raise RateLimited(f"{_MAX_UNFINISHED} batches have not ended, which is the limit. Try again when one has.")
        await self._storage.files.hold(input_file_id, client)
        try:
            await self._storage.database.run(lambda connection: insert_batch(connection, batch))
        except BaseException:
            self._storage.files.release(input_file_id)
            raise
        self._waiting[batch.batch_id] = batch
        self._begin_next()
        return batch

    async def get(self, batch_id: str, client: str) -> Batch:
        """Raises NotFound if there is none, or if it belongs to another client."""
        batch = await self._storage.database.run(lambda connection: find_batch(connection, batch_id, client))
        if batch is None:
            raise NotFound(f"No batch found with id '{batch_id[:64]}'.", param="batch_id")
        return self._as_it_is(batch)

    async def list(self, client: str, query: PageQuery) -> Page[Batch]:
        page = await self._storage.database.run(lambda connection: list_batches(connection, client, query))
        if page is None:
            raise InvalidRequest("after must be the id of a batch of yours.", param="after")
        return Page([self._as_it_is(batch) for batch in page.items], page.has_more)

    async def cancel(self, batch_id: str, client: str) -> Batch:
        """Raises as `get`; InvalidRequest if the batch is over. No effect if it is ending already."""
        batch = await self.get(batch_id, client)
        if batch.is_over:
            raise InvalidRequest(f"Cannot cancel a batch with status '{batch.status}'.", param="batch_id")
        if batch.status is BatchStatus.VALIDATING and self._waiting.pop(batch_id, None) is not None:
            return await self._cancel_before_its_run(batch)
        if not batch.is_ending and batch_id not in self._runs:  # it waits, for its turn or for a retry, or is starting
            batch = batch.reaching(BatchStatus.CANCELLING, int(time.time()))
            await self._save(batch)
            if batch_id in self._waiting:  # its run hands over the results that it has
                self._waiting[batch_id] = batch
                self._begin_next()
        run = self._runs.get(batch_id)  # it may have started meanwhile
        return batch if run is None else await run.cancel()

    async def follow(
        self, batch: Batch, is_ending: Callable[[], bool], wants_lines: bool = True
    ) -> AsyncIterator[Batch | bytes]:
        """Yields result lines as they reach the disk, from the first one on, and the batch whenever it has changed; the
        last item is the finished batch. Also ends within about a second after `is_ending` returns True."""
        lines, told = WrittenLines(2), None
        try:
            with self._watchers.watched(batch.batch_id) as changed:
                while True:
                    changed.clear()
                    batch = await self._now(batch)
                    read = partial(lines.read, await self._result_paths(batch) if wants_lines else ())
                    while found := await self._in_thread(read):
                        for line in found:
                            yield line
                    if batch != told:
                        yield (told := batch)
                    if batch.is_over or is_ending():
                        return
                    with suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), _LOOK_EVERY_S)
        finally:
            lines.close()

    async def close(self) -> None:
        """Stop. Results so far are written first."""
        tasks = [*self._tasks.values(), *([] if self._resuming is None else [self._resuming])]
        self._waiting.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._thread.shutdown(wait=False)

    def _as_it_is(self, batch: Batch) -> Batch:
        """`batch`, from the database, with its present progress. An end is only reported once it is stored there."""
        run = self._runs.get(batch.batch_id)
        return batch if run is None or batch.is_over or run.batch.is_over else run.batch

    async def _now(self, batch: Batch) -> Batch:
        run = self._runs.get(batch.batch_id)
        return await self.get(batch.batch_id, batch.client) if run is None or run.batch.is_over else run.batch

    async def _result_paths(self, batch: Batch) -> Sequence[Path | None]:
        """Paths of output and error file: in the batch's folder until it is over, then the client's files, if any."""
        if not batch.is_over:
            folder = self._folder / batch.batch_id
            return [folder / ANSWERS, folder / ERRORS]
        files = self._storage.files
        ids = (batch.output_file_id, batch.error_file_id)
        found = [None if file_id is None else await files.find(file_id, batch.client) for file_id in ids]
        return [None if file is None else files.path_of(file) for file in found]

    async def _resume(self) -> None:
        while True:
            try:
                left = await self._storage.database.run(unfinished_batches)
                await self._in_thread(partial(self._sweep, {batch.batch_id for batch in left}))
                break
            except (StorageUnavailable, StorageFull) as fault:
                _logger.warning("batches of an earlier run of the server cannot be read yet: %s", fault)
                await asyncio.sleep(_RETRY_S)
        for batch in left:
            if batch.batch_id in self._runs or batch.batch_id in self._waiting:
                continue
            try:
                await self._storage.files.hold(batch.input_file_id, batch.client)
            except NotFound:
                gone = InputError("file_not_found", "The input file no longer exists.")
                await self._try_to_fail(batch.batch_id, batch.client, gone)
                continue
            self._waiting[batch.batch_id] = batch
        self._begin_next()

    def _sweep(self, unfinished: Set[str]) -> None:
        """Remove the folders of batches that are over."""
        if self._folder.exists():
            for folder in self._folder.iterdir():
                if folder.name not in unfinished and folder.name not in self._runs:
                    shutil.rmtree(folder, ignore_errors=True)

    def _begin_next(self) -> None:
        """Start waiting batches: at once those that are ending, since they run no more lines; the others while fewer
        than _MAX_RUNNING run, of the client with the fewest running ones first, and in order of creation."""
        for batch in [batch for batch in self._waiting.values() if batch.is_ending]:
            self._begin(batch)
        while self._waiting and len(self._tasks) < _MAX_RUNNING:
            self._begin(min(self._waiting.values(), key=self._num_running_of))

    def _begin(self, batch: Batch) -> None:
        del self._waiting[batch.batch_id]
        self._running_clients[batch.client] += 1
        self._tasks[batch.batch_id] = asyncio.create_task(self._run(batch))

    def _num_running_of(self, batch: Batch) -> int:
        """Running batches of its client."""
        return self._running_clients[batch.client]

    async def _run(self, batch: Batch) -> None:
        """Run the batch to its end, with retries after storage faults."""
        batch_id = batch.batch_id
        try:
            while True:
                try:
                    await self._run_once(batch)
                    return
                except (StorageUnavailable, StorageFull) as fault:
                    _logger.warning("%s cannot continue yet: %s", batch_id, fault)
                    await asyncio.sleep(_RETRY_S)
        except Exception:  # a bug outside of running lines costs nothing that was computed, and no other batch
            _logger.exception("%s has failed", batch_id)
            error = InputError("server_error", "The server had an error while the batch ran.")
            await self._try_to_fail(batch_id, batch.client, error)
        finally:
            del self._tasks[batch_id]
            self._running_clients.subtract((batch.client,))
            self._storage.files.release(batch.input_file_id)
            self._begin_next()

    async def _run_once(self, batch: Batch) -> None:
        file = await self._storage.files.get(batch.input_file_id, batch.client)
        # Read last: what `cancel` has stored until now is seen here, and a later `cancel` finds the run.
        batch = await self.get(batch.batch_id, batch.client)
        run = BatchRun(
            batch,
            file,
            self._storage,
            self._seats,
            self._ask,
            self._in_thread,
            self._save,
            partial(self._note_ended, batch.batch_id),
        )
        self._runs[batch.batch_id] = run
        try:
            await run.run()
        finally:
            del self._runs[batch.batch_id]

    async def _cancel_before_its_run(self, batch: Batch) -> Batch:
        """Cancel a batch that was waiting and has no results."""
        now_s = int(time.time())
        cancelled = batch.reaching(BatchStatus.CANCELLING, now_s).reaching(
            BatchStatus.CANCELLED, now_s, output_file_id=None, error_file_id=None
        )
        try:
            await self._save(cancelled)
        except (StorageUnavailable, StorageFull):
            self._waiting[batch.batch_id] = batch
            self._begin_next()
            raise
        self._storage.files.release(batch.input_file_id)
        return cancelled

    async def _try_to_fail(self, batch_id: str, client: str, error: InputError) -> None:
        """What cannot be done now is left, with all results, to a later run of the server."""
        try:
            await self._fail(await self.get(batch_id, client), error)
        except (StorageUnavailable, StorageFull) as fault:
            _logger.warning("%s cannot end before the next start: %s", batch_id, fault)
        except Exception:  # the bug that ends the batch may be where results are handed over
            _logger.exception("%s cannot end before the next start, and keeps its results", batch_id)

    async def _fail(self, batch: Batch, error: InputError) -> None:
        """End the batch with the results that it has. If all are written, it ends as it was to end anyway."""
        folder = self._folder / batch.batch_id
        batch = await salvage(batch, folder, self._storage, self._in_thread)
        if batch.is_written and batch.becomes is not None:
            status, errors = batch.becomes, batch.errors
        else:
            status, errors = BatchStatus.FAILED, (error,)
        await self._save(batch.reaching(status, int(time.time()), errors=errors))
        await self._in_thread(partial(shutil.rmtree, folder, ignore_errors=True))

    async def _save(self, batch: Batch) -> None:
        await self._storage.database.run(lambda connection: update_batch(connection, batch))
        self._watchers.tell(batch.batch_id)

    def _note_ended(self, batch_id: str, lines: Mapping[str, int]) -> None:
        """lines: numbers of lines whose results are now on disk, by outcome."""
        self.lines_ended.update(lines)
        self._watchers.tell(batch_id)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def translated() -> T:
            with self._storage.faults.translated():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)
