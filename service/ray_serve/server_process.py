"""A Headrace server as a child process, on a Unix socket in a folder of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import httpx

from service.errors import ServerError
from service.ray_serve.call import AnswerHead, Call, end_to_end

_ASK_EVERY_S = 0.1
_ANSWERS_WITHIN_S = 5.0
_HOST = "http://localhost"  # never resolved


def child(run: Sequence[str], flags: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a module with these arguments; the child ends with this process and with the calling thread. environment:
    in addition to this process's."""
    command = [sys.executable, "-m", "service.process.with_parent", str(os.getpid()), *run, *flags]
    return subprocess.Popen(command, env={**os.environ, **environment})


class ServerProcess:
    """Starts the server, and returns when it is ready: in seconds to minutes, during which the calling thread blocks.

    run: a module and its arguments before the flags. Flags of the folder (socket, data) are added. environment: in
    addition to this process's. The server ends with this process, and with the thread that made it. ServerError if it
    ends before it is ready.
    """

    def __init__(
        self, run: Sequence[str], flags: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-", ignore_cleanup_errors=True)
        socket, data = Path(self._folder.name) / "socket", Path(self._folder.name) / "data"
        self._process = child(run, ["--uds", str(socket), "--data-dir", str(data), *flags], environment)
        transport = httpx.AsyncHTTPTransport(uds=str(socket), limits=httpx.Limits(max_connections=None))
        self._client = httpx.AsyncClient(base_url=_HOST, transport=transport, timeout=None)
        self._wait_until_ready(socket)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def exchange(self, call: Call) -> AsyncIterator[AnswerHead | bytes]:
        """The head of the answer, then its body as it comes. Closing the iterator closes the connection, which tells
        the server that the client has disconnected. Raises httpx.TransportError if the server is lost."""
        request = self._client.build_request(call.method, call.target, headers=list(call.headers), content=call.body)
        response = await self._client.send(request, stream=True)
        try:
            yield AnswerHead(response.status_code, end_to_end(response.headers.raw))
            async for piece in response.aiter_raw():
                yield piece
        finally:
            await response.aclose()

    async def text(self, path: str) -> str:
        """The body of a GET. Raises httpx.HTTPError, also for a status other than 200."""
        response = await self._client.get(path, timeout=_ANSWERS_WITHIN_S)
        return response.raise_for_status().text

    def wait(self) -> int:
        """Waits for its end and removes its folder; returns the exit status."""
        status = self._process.wait()
        self._folder.cleanup()
        return status

    def stop(self, within_s: float) -> None:
        """SIGTERM, and after `within_s` seconds SIGKILL."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self.wait()

    def _wait_until_ready(self, socket: Path) -> None:
        with httpx.Client(base_url=_HOST, transport=httpx.HTTPTransport(uds=str(socket))) as http:
            while not (socket.exists() and _is_ready(http)):
                if self._process.poll() is not None:
                    raise ServerError(f"the server has ended with status {self.wait()} before it was ready")
                time.sleep(_ASK_EVERY_S)


def _is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/ready", timeout=_ANSWERS_WITHIN_S).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
