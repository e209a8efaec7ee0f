"""One batch on its way from `validating` to its end, from wherever an earlier run of the server has left it."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from service.batch_jobs.batch import Batch, BatchStatus
from service.batch_jobs.batch_input import BatchLine, BatchReader, check_input
from service.batch_jobs.batch_output import Answer, BatchOutput, LineResult, num_bytes_of
from service.batch_jobs.result_writer import ResultWriter
from service.batch_jobs.seats import Seat, Seats
from service.errors import StorageFull
from service.storage.file_table import StoredFile
from service.storage.storage import Storage
from service.storage.upload import InThread

Ask = Callable[[Batch, bytes], Awaitable[Answer]]
"""Answers a body that is sent to the batch's endpoint by its client. Never raises, but for being cancelled."""

_READ_LINES = 64
_READ_BYTES = 1024 * 1024
_RETRY_S = 1.0
_LATER = frozenset({429, 503})
"""Answers that say that the server cannot now: the line is run again."""
_LAST_WORDS_S = 5.0
_WHY_NOT_RUN = {
    BatchStatus.EXPIRED: ("batch_expired", "This request could not be run before the completion window ended."),
    BatchStatus.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was run."),
}


class BatchRun:
    """`run` is called once. save: puts the batch into the table. in_thread: for long work on files. count: is told
    of lines that have ended, by outcome."""

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
        self._name = batch.batch_id.rpartition("_")[2]
        self._cancelled = asyncio.Event()

    @property
    def batch(self) -> Batch:
        """As it is now."""
        return self._batch

    async def cancel(self) -> Batch:
        """The batch, which ends soon; one that is ending already does as it would have."""
        if self._batch.status in (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS):
            await self._reach(BatchStatus.CANCELLING)
            self._cancelled.set()
        return self._batch

    async def run(self) -> None:
        """Until the batch is over. Raises what the storage raises; the batch can then be run anew. Cancelled, it is
        left as it is, with all results on the disk."""
        if self._batch.status is BatchStatus.VALIDATING and not await self._validate():
            return
        output = await self._in_thread(lambda: BatchOutput(self._folder, self._name))
        try:
            if self._batch.is_written:
                self._storage.budget.note(await self._in_thread(lambda: output.num_bytes))
            else:
                await self._run_lines(output)
            await self._hand_over(output)
        except Exception:
            self._storage.budget.give_back(output.num_bytes)  # who goes on with it counts anew
            raise
        finally:
            output.close()
        await self._in_thread(lambda: shutil.rmtree(self._folder, ignore_errors=True))

    async def _validate(self) -> bool:
        """Whether there are lines to run."""
        checked = await self._in_thread(lambda: check_input(self._input, self._batch.endpoint))
        if checked.errors:
            await self._reach(BatchStatus.FAILED, errors=checked.errors, output_file_id=None, error_file_id=None)
            return False
        if self._batch.status is BatchStatus.VALIDATING:
            await self._reach(BatchStatus.IN_PROGRESS, num_lines=checked.num_lines)
        else:  # cancelled meanwhile
            self._batch = replace(self._batch, num_lines=checked.num_lines)
        return True

    async def _run_lines(self, output: BatchOutput) -> None:
        """All of them, or those that may still be; then the others are told of."""
        done, num_completed, num_failed, num_bytes = await self._in_thread(output.recover)
        self._storage.budget.note(num_bytes)
        if self._batch.becomes is None:
            self._batch = replace(self._batch, num_completed=num_completed, num_failed=num_failed)
            becomes = await self._work(output, done)
            keeps = self._batch.status is BatchStatus.CANCELLING
            await self._reach(self._batch.status if keeps else BatchStatus.FINALIZING, becomes=becomes)
        if self._batch.becomes in _WHY_NOT_RUN:
            with suppress(StorageFull):  # a line that is not told of was not run
                await self._tell_of_the_rest(output)
        await self._reach(self._batch.status, is_written=True)

    async def _work(self, output: BatchOutput, done: bytearray) -> BatchStatus:
        """How the batch ends."""
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
        except asyncio.CancelledError:
            running.cancel()
            await asyncio.wait((running,))
            with suppress(TimeoutError):
                await asyncio.wait_for(writer.flush(), _LAST_WORDS_S)
            raise
        finally:
            cancelling.cancel()
        running.cancel()
        await asyncio.wait((running,))
        await writer.flush()
        return BatchStatus.CANCELLED if self._cancelled.is_set() else BatchStatus.EXPIRED

    async def _run_each(self, writer: ResultWriter, done: bytearray) -> None:
        """Every line that is not done, each as soon as it has a seat."""
        reader = await self._in_thread(lambda: BatchReader(self._input))
        try:
            async with asyncio.TaskGroup() as running:
                while lines := await self._in_thread(partial(reader.read, _READ_LINES, _READ_BYTES, done)):
                    for line in lines:
                        await writer.wait_for_room()
                        seat = await self._seats.take()
                        task = running.create_task(self._run_line(line, seat, writer))
                        task.add_done_callback(partial(_give_back, seat))  # also if it never began
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

    async def _hand_over(self, output: BatchOutput) -> None:
        """Its two files become files of its client. May be done again after it was broken off."""
        batch = self._batch
        assert batch.becomes is not None
        ids: list[str | None] = []
        for path, file_id, kind in (
            (output.answers, batch.output_file_id, "output"),
            (output.errors, batch.error_file_id, "error"),
        ):
            assert file_id is not None
            num_bytes = await self._in_thread(partial(num_bytes_of, path))
            if num_bytes:
                now_s = int(time.time())
                expires_at = None if batch.output_expires_after_s is None else now_s + batch.output_expires_after_s
                name = f"{batch.batch_id}_{kind}.jsonl"
                file = StoredFile(file_id, batch.client, "batch_output", name, num_bytes, now_s, expires_at)
                await self._storage.files.adopt(path, file)
                ids.append(file_id)
            else:
                ids.append(None if await self._storage.files.find(file_id, batch.client) is None else file_id)
        await self._reach(batch.becomes, output_file_id=ids[0], error_file_id=ids[1])

    async def _reach(self, status: BatchStatus, **changes: object) -> None:
        self._batch = self._batch.reaching(status, int(time.time()), **changes)
        await self._save(self._batch)


def _give_back(seat: Seat, _: asyncio.Task[None]) -> None:
    seat.give_back()
