"""Third-party routers in front of several of our replicas, each a subprocess of the measuring script.

HAProxy runs with the configuration file that we ship. vllm-router may be installed in its own environment.
"""

import contextlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from loadtest.server_process import free_port, running_server

HAPROXY_FILE = Path(__file__).parents[1] / "deploy" / "haproxy" / "haproxy.cfg"

SEES_A_DRAIN = (
    "--health-check-endpoint=/ready",
    "--health-check-interval-secs=2",
    "--health-failure-threshold=1",
    "--health-success-threshold=1",
)
"""vllm-router's flags, as in docker-compose.yml. With them it notices a dead replica as soon as HAProxy does."""

CACHE_AWARE = ("--policy=cache_aware",)
"""Routes by its own record of which prompts it sent to which replica."""


def program(name: str) -> str | None:
    """Path of a router's program, beside this Python or on PATH; None if it is not installed."""
    return shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)


def kv_aware(model: str, endpoints: Mapping[str, tuple[str, str]]) -> tuple[str, ...]:
    """vllm-router's flags for routing by the KV events of the replicas' prefix caches.

    endpoints: replica URL -> its addresses for publishing and for replaying events.
    """
    sources = [
        flag
        for url, (events, replays) in endpoints.items()
        for flag in (f"--kv-event-source={url}={events}", f"--kv-event-replay-source={url}={replays}")
    ]
    return ("--policy=kv_aware", f"--kv-event-model={model}", *sources)


def kv_event_flags(events: str, replays: str) -> tuple[str, ...]:
    """A replica's flags for the endpoints of `kv_aware`: it listens on the addresses that the router connects to."""
    listened = (endpoint.replace("127.0.0.1", "*") for endpoint in (events, replays))
    return tuple(
        word
        for flag, endpoint in zip(("--kv-events-endpoint", "--kv-events-replay-endpoint"), listened, strict=True)
        for word in (flag, endpoint)
    )


def haproxy_configuration(shipped: str, urls: Sequence[str], port: int) -> str:
    """The shipped file with other addresses: its own are Docker's names, which do not exist here."""
    addresses = [url.removeprefix("http://") for url in urls]
    template = re.compile(
        r"^    server-template replica \d+ headrace:8000 (.*?) resolvers docker init-addr none$", re.M
    )
    lines = [f"    server replica{i} {address} \\1" for i, address in enumerate(addresses)]
    text = template.sub("\n".join(lines), shipped).replace("bind :8000", f"bind 127.0.0.1:{port}")
    text = re.sub(r"^resolvers docker\n(    .*\n)+", "", text, flags=re.M)
    return text.replace("headrace-0:8000", addresses[0]).replace(" resolvers docker init-addr none", "")


@contextlib.contextmanager
def running_haproxy(urls: Sequence[str]) -> Iterator[str]:
    """Yields its base URL once it forwards requests. Raises ServerDidNotStartError."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "haproxy.cfg"
        file.write_text(haproxy_configuration(HAPROXY_FILE.read_text(), urls, port))
        command = [program("haproxy") or "haproxy", "-f", str(file)]
        with running_server(command, f"http://127.0.0.1:{port}/health", timeout_s=20):
            yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def running_vllm_router(urls: Sequence[str], flags: Sequence[str]) -> Iterator[str]:
    """Yields its base URL once it forwards requests. Raises ServerDidNotStartError."""
    port = free_port()
    command = [
        program("vllm-router") or "vllm-router",
        f"--port={port}",
        f"--prometheus-port={free_port()}",
        "--log-level=warning",
        "--worker-urls",
        *urls,
        *SEES_A_DRAIN,
        *flags,
    ]
    with running_server(command, f"http://127.0.0.1:{port}/health", timeout_s=20):
        yield f"http://127.0.0.1:{port}"
