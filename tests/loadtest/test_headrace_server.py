import urllib.request
from pathlib import Path

import pytest

from loadtest.headrace_server import headrace_server
from loadtest.server_process import ServerDidNotStartError
from tests.e2e.server_process import write_dummy_folder


def test_settings_of_the_environment_do_not_reach_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_SERVED_MODEL_NAME", "of-the-environment")
    folder = str(write_dummy_folder(tmp_path / "dummy"))
    flags = [folder, "--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "8MiB"]
    with (
        (tmp_path / "log").open("w+b") as log,
        headrace_server(flags, log) as server,
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v1/models") as answer,
    ):
        assert b"of-the-environment" not in answer.read()


@pytest.mark.usefixtures("forked_servers")
def test_a_start_that_fails_is_told(tmp_path: Path) -> None:
    with (
        (tmp_path / "log").open("w+b") as log,
        pytest.raises(ServerDidNotStartError, match="block-size"),
        headrace_server(["--block-size", "0"], log),
    ):
        pass
