import sys
from pathlib import Path

import pytest

from loadtest.process_cpu import cpu_seconds_by_thread
from loadtest.server_process import ServerDidNotStartError, free_port, running_server


def test_waits_until_ready_and_stops() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/ready"
    command = [sys.executable, "-m", "loadtest.stub_server", "--port", str(port)]
    with running_server(command, url) as server:
        assert 0 < server.start_s < 60
        assert sum(cpu_seconds_by_thread(server.pid).values()) > 0
    with running_server(command, url):
        pass


def test_what_it_prints_goes_to_the_file(tmp_path: Path) -> None:
    port = free_port()
    program = f"print('here', flush=True); import sys, runpy; sys.argv[1:] = ['--port', '{port}']"
    program += "; runpy.run_module('loadtest.stub_server', run_name='__main__')"
    command = [sys.executable, "-c", program]
    with (tmp_path / "out").open("w+b") as output:
        with running_server(command, f"http://127.0.0.1:{port}/ready", output=output):
            pass
        output.seek(0)
        assert output.read().startswith(b"here")


def test_a_server_that_ends_is_reported_with_its_output() -> None:
    command = [sys.executable, "-c", "print('no model'); raise SystemExit(3)"]
    with (
        pytest.raises(ServerDidNotStartError, match="code 3: no model"),
        running_server(command, f"http://127.0.0.1:{free_port()}/ready"),
    ):
        pass


def test_a_server_that_is_never_ready_is_given_up() -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with (
        pytest.raises(ServerDidNotStartError, match="not ready"),
        running_server(command, f"http://127.0.0.1:{free_port()}/ready", timeout_s=0.3),
    ):
        pass
