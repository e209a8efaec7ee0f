import sys

import pytest

from loadtest.server_process import ServerDidNotStartError, free_port, running_server


def test_waits_until_ready_and_stops() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/ready"
    command = [sys.executable, "-m", "loadtest.stub_server", "--port", str(port)]
    with running_server(command, url) as start_s:
        assert 0 < start_s < 60
    with running_server(command, url):
        pass


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
