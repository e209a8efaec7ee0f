"""One case against the server: sends all bytes, reads all answers, and compares them with the oracle (reading.py)."""

import asyncio
import contextlib
from collections import Counter

from loadtest.answer_rules import BrokenRuleError, check_answer
from loadtest.fuzz.cases import Case
from loadtest.fuzz.reading import Reading, Rest, SeenRequest, read_requests
from loadtest.http_response import BadResponseError
from loadtest.soak.raw_connection import RawConnection
from loadtest.strict_http import Answer

ENDS_WITHIN_S = 30.0
STALLED_ENDS_WITHIN_S = 45.0
"""More than the server waits: 31 s for a body, 10 s for headers."""

_REFUSAL_BYTES = 1000
_BETWEEN_PIECES_S = 0.001
_EXPECTED = frozenset({*range(200, 500), 501, 505})
"""No 5xx but those that RFC 9110 has for unknown transfer encodings (501) and HTTP versions (505)."""


async def run_case(case: Case, port: int, seen: Counter[str]) -> str | None:
    """Returns a description of the fault; None if there is none. Counts statuses in `seen`."""
    reading = read_requests(case.data)
    stalls = case.stalls and reading.rest is Rest.INCOMPLETE
    within_s = STALLED_ENDS_WITHIN_S if stalls else ENDS_WITHIN_S
    connection = await RawConnection.to(port)
    exchange = _Exchange(connection, reading, seen)
    try:
        async with asyncio.timeout(within_s):
            await exchange.run(case, stalls=stalls)
    except TimeoutError:
        return f"{exchange.num_answers} answers, and no end within {within_s:g} s"
    except (BadResponseError, BrokenRuleError) as fault:
        return str(fault)
    except asyncio.IncompleteReadError as fault:
        return f"the answer is cut: {fault.partial[-200:]!r}"
    finally:
        connection.writer.transport.abort()
    return None


class _Exchange:
    def __init__(self, connection: RawConnection, reading: Reading, seen: Counter[str]) -> None:
        self._connection = connection
        self._reading = reading
        self._seen = seen
        self._is_last = False  # the server has said that it will close the connection
        self._may_have_body = False  # a refused HEAD: the server may not have read the method, so it may send a body
        self.num_answers = 0

    async def run(self, case: Case, *, stalls: bool) -> None:
        """Raises BrokenRuleError or what the reader of answers raises."""
        await self._send(case)
        try:
            for request in self._reading.requests:
                if self._is_last or await self._answer(request) is None:
                    break
            if not stalls and not self._is_last:
                self._half_close()
            if not self._is_last:
                await self._read_rest()
            await self._end()
        except ConnectionError:
            if self.num_answers < len(self._reading.requests) and not self._is_last:
                raise BrokenRuleError(f"reset after {self.num_answers} answers") from None

    async def _send(self, case: Case) -> None:
        start = 0
        with contextlib.suppress(ConnectionError):  # the server may have refused it and closed
            for size in case.pieces:
                self._connection.writer.write(case.data[start : start + size])
                start += size
                if start < len(case.data):
                    await asyncio.sleep(_BETWEEN_PIECES_S)

    async def _read_rest(self) -> None:
        """After the complete requests may come: nothing, an answer to the request that has begun, or one refusal."""
        if self.num_answers < len(self._reading.requests):
            raise BrokenRuleError(f"closed after {self.num_answers} answers, without announcing it")
        if self._reading.rest is Rest.UNREAD:
            raise BrokenRuleError("the connection's last answer does not announce the close")
        if self._reading.rest is Rest.NOTHING:
            return
        answer = await self._answer(self._reading.begun or SeenRequest("GET", False))
        if answer is not None and self._reading.begun is None and (answer.status < 400 or not answer.closes):
            raise BrokenRuleError(f"{answer.status} to bytes that are no request")

    async def _answer(self, request: SeenRequest) -> Answer | None:
        answer = await self._connection.answer(method=request.method, http_1_0=request.is_1_0)
        if answer is not None:
            self.num_answers += 1
            self._seen[str(answer.status)] += 1
            self._is_last = answer.closes
            self._may_have_body = request.method == "HEAD" and answer.closes and answer.status >= 400
            check_answer(answer, _EXPECTED, to_head=request.method == "HEAD")
        return answer

    def _half_close(self) -> None:
        with contextlib.suppress(OSError):
            self._connection.writer.write_eof()

    async def _end(self) -> None:
        extra = await self._connection.reader.read(_REFUSAL_BYTES)
        if extra and not self._may_have_body:
            raise BrokenRuleError(f"bytes that belong to no answer: {extra!r}")
