"""Runs one batch from `validating` to its end, starting wherever an earlier run of the server has left it."""

from __future__ import annotations

import asyncio
import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from service.batch_jobs.batch import Batch, BatchStatus, InputError
from service.batch_jobs.batch_input import BatchLine, BatchReader, check_input
from service.batch_jobs.batch_output import Answer, BatchOutput, LineResult
from service.batch_jobs.result_files import hand_over
from service.batch_jobs.result_writer import ResultWriter
from service.batch_jobs.seats import Seat, Seats
from service.errors import StorageFull, StorageUnavailable
from service.storage.file_table import StoredFile
from service.storage.storage import Storage
from service.storage.upload import InThread

_logger = logging.getLogger(__name__)

Ask = Callable[[Batch, bytes], Awaitable[Answer]]
"""Answers a request body as the batch's endpoint would answer its client. Raises only CancelledError."""

_READ_LINES = 64
_READ_BYTES = 1024 * 1024
_RETRY_S = 1.0
_LATER = frozenset({429, 503})
"""Statuses that mean `not now`: the line is tried again."""
_LAST_WORDS_S = 5.0
_WHY_NOT_RUN = {
    BatchStatus.EXPIRED: ("batch_expired", "This request could not be run before the completion window ended."),
    BatchStatus.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was run."),
    BatchStatus.FAILED: ("batch_failed", "The server had an error before this request was answered."),
}
_DEFECT = InputError(
    "server_error", "The server had an error while the batch ran. The answers until then are in the batch's files."
)


class BatchRun:
    """`run` is called once. save: writes the batch to the database. in_thread: for slow work on files. count: called
    with numbers of ended lines, by outcome."""

    def __init__(
        self,
        batch: Batch,
        input_file: StoredFile,
        storage: Storage,
        seats: Seats,
        ask: Ask,
        in_thread: InThread,
        save: Callable[[Batch], Awaitable[None]],
        count: Callable[[Mapping[str, int]], None],
    ) -> None:
        self._batch = batch
        self._input = storage.files.path_of(input_file)
        self._storage = storage
        self._seats = seats
        self._ask = ask
        self._in_thread = in_thread
        self._save = save
        self._count = count
        self._folder = storage.folder / "batches" / batch.batch_id
        self._cancelled = asyncio.Event()

    @property
    def batch(self) -> Batch:
        """The present state."""
        return self._batch

    async def cancel(self) -> Batch:
        """Cancel the batch, which then ends soon, and return it. No effect if it is ending already."""
        if self._batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            await self._reach(BatchStatus.CANCELLING)
            self._cancelled.set()
        return self._batch

    async def run(self) -> None:
        """Run until the batch is over. Raises storage faults; the batch can then be run again by a new BatchRun. So it
        can if this task is cancelled, or raises another exception: all results so far are on disk. After an exception
        while lines run, the batch fails and keeps its results."""
        if not self._batch.num_lines and not await self._validate():
            return
        output = await self._in_thread(lambda: BatchOutput(self._folder, self._batch.hex_id))
        try:
            if self._batch.is_written:
                self._storage.budget.note(await self._in_thread(lambda: output.num_bytes))
            else:
                await self._run_lines(output)
            self._batch = await hand_over(self._batch, self._folder, self._storage, self._in_thread)
            assert self._batch.becomes is not None
            await self._reach(self._batch.becomes)
        except Exception:
            self._storage.budget.give_back(output.num_bytes)  # the next attempt counts them again
            raise
        finally:
            output.close()
        await self._in_thread(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    async def _validate(self) -> bool:
        """Check the input file. False if the batch failed by it."""
        checked = await self._in_thread(lambda: check_input(self._input, self._batch.endpoint))
        if checked.errors:
            await self._reach(BatchStatus.FAILED, errors=checked.errors, output_file_id=None, error_file_id=None)
            return False
        if self._batch.status is BatchStatus.VALIDATING:
            await self._reach(BatchStatus.IN_PROGRESS, num_lines=checked.num_lines)
        else:  # it was cancelled meanwhile
            self._batch = replace(self._batch, num_lines=checked.num_lines)
        return True

    async def _run_lines(self, output: BatchOutput) -> None:
        """Run the lines until all have ended, or the batch was cancelled, has expired or has failed. Then record the
        lines that were not run."""
        done, num_completed, num_failed, num_bytes = await self._in_thread(output.recover)
        self._storage.budget.note(num_bytes)
        if self._batch.becomes is None:
            self._batch = replace(self._batch, num_completed=num_completed, num_failed=num_failed)
            becomes = await self._work_or_fail(output, done)
            errors = (_DEFECT,) if becomes is BatchStatus.FAILED else ()
            keeps = self._batch.status is BatchStatus.CANCELLING
            status = self._batch.status if keeps else BatchStatus.FINALIZING
            await self._reach(status, becomes=becomes, errors=errors)
        if self._batch.becomes in _WHY_NOT_RUN:
            await self._try_to_tell_of_the_rest(output)
        await self._reach(self._batch.status, is_written=True)

    async def _work_or_fail(self, output: BatchOutput, done: bytearray) -> BatchStatus:
        try:
            return await self._work(output, done)
        except (StorageUnavailable, StorageFull):
            raise
        except Exception:  # a bug costs neither other batches nor this one's results
            _logger.exception("%s has failed", self._batch.batch_id)
            return BatchStatus.FAILED

    async def _work(self, output: BatchOutput, done: bytearray) -> BatchStatus:
        """Run lines; returns the batch's final status."""
        if self._batch.status is BatchStatus.CANCELLING:
            return BatchStatus.CANCELLED
        writer = ResultWriter(output, self._storage.budget, self._in_thread, self._note_written)
        running = asyncio.create_task(self._run_each(writer, done))
        cancelling = asyncio.create_task(self._cancelled.wait())
        left_s = max(0.0, self._batch.expires_at - time.time())
        try:
            await asyncio.wait((running, cancelling), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
                await writer.flush()
                return BatchStatus.COMPLETED
        except BaseException:  # the output is closed next: nothing may write to it then
            running.cancel()
            await asyncio.wait((running,))
            await writer.close(_LAST_WORDS_S)
            raise
        finally:
            cancelling.cancel()
        running.cancel()
        await asyncio.wait((running,))
        await writer.flush()
        return BatchStatus.CANCELLED if self._cancelled.is_set() else BatchStatus.EXPIRED

    async def _run_each(self, writer: ResultWriter, done: bytearray) -> None:
        """Run every line that is not done, each when it gets a seat."""
        reader = await self._in_thread(lambda: BatchReader(self._input))
        try:
            async with asyncio.TaskGroup() as running:
                while lines := await self._in_thread(partial(reader.read, _READ_LINES, _READ_BYTES, done)):
                    for line in lines:
                        await writer.wait_for_room()
                        seat = await self._seats.take()
                        task = running.create_task(self._run_line(line, seat, writer))
                        task.add_done_callback(partial(_give_back, seat))  # also if it is cancelled before it starts
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            reader.close()

    async def _run_line(self, line: BatchLine, seat: Seat, writer: ResultWriter) -> None:
        while (answer := await self._ask(self._batch, line.body)).status in _LATER:
            await asyncio.sleep(_RETRY_S)
        writer.put(LineResult(line.number, line.custom_id, answer))
        seat.give_back()

    def _note_written(self, results: Sequence[LineResult]) -> None:
        num_completed = sum(result.is_completed for result in results)
        num_failed = sum(result.is_failed for result in results)
        self._batch = replace(
            self._batch,
            num_completed=self._batch.num_completed + num_completed,
            num_failed=self._batch.num_failed + num_failed,
        )
        self._count({"completed": num_completed, "failed": num_failed})

    async def _try_to_tell_of_the_rest(self, output: BatchOutput) -> None:
        """A line without a result was not run, so the batch may end without this. Raises StorageUnavailable."""
        try:
            await self._tell_of_the_rest(output)
        except StorageUnavailable:
            raise
        except StorageFull as fault:
            _logger.warning("%s: lines that were not run cannot be recorded: %s", self._batch.batch_id, fault)
        except Exception:  # a bug here may not cost the results that there are
            _logger.exception("%s: lines that were not run cannot be recorded", self._batch.batch_id)

    async def _tell_of_the_rest(self, output: BatchOutput) -> None:
        assert self._batch.becomes is not None
        why = _WHY_NOT_RUN[self._batch.becomes]
        done = (await self._in_thread(output.recover)).done
        reader = await self._in_thread(lambda: BatchReader(self._input))
        try:
            while lines := await self._in_thread(partial(reader.read, 10 * _READ_LINES, _READ_BYTES, done)):
                results = [LineResult(line.number, line.custom_id, why) for line in lines]
                answers, errors = output.lines_of(results)
                self._storage.budget.take(len(errors))
                await self._in_thread(partial(output.append, answers, errors))
        finally:
            reader.close()

    async def _reach(self, status: BatchStatus, **changes: object) -> None:
        self._batch = self._batch.reaching(status, int(time.time()), **changes)
        await self._save(self._batch)


def _give_back(seat: Seat, _: asyncio.Task[None]) -> None:
    seat.give_back()
