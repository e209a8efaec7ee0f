from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from service.chat_client import batch_command
from service.chat_client.batch_command import main
from service.chat_client.batch_watch import watch_batch
from service.chat_client.server import BatchState, Server
from tests.api.running_server import RunningServer, running
from tests.e2e.server_process import write_dummy_folder


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


def write(folder: Path, *requests: object) -> tuple[str, Path]:
    path = folder / "in.jsonl"
    path.write_text("\n".join(map(json.dumps, requests)))
    return str(path), folder / "out.jsonl"


def test_a_running_server_answers_the_file(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("hi there")
    file, out = write(tmp_path, *({"prompt": f"number {n}"} for n in range(50)))
    assert main([file, "--out", str(out), "--url", server.base_url]) == 0
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(int(answer["custom_id"]) for answer in answers) == list(range(1, 51))
    assert {answer["response"]["body"]["choices"][0]["text"] for answer in answers} == {"hi there"}
    assert "completed: 50 answers and 0 errors of 50 requests" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.part"))


def test_a_request_that_is_refused_is_an_error_of_the_command(server: RunningServer, tmp_path: Path) -> None:
    file, out = write(tmp_path, {"prompt": "x"}, {"prompt": 1.5})
    assert main([file, "--out", str(out), "--url", server.base_url]) == 1
    statuses = [json.loads(line)["response"]["status_code"] for line in out.read_text().splitlines()]
    assert sorted(statuses) == [200, 400]


def test_a_file_that_cannot_be_run_is_told_of_and_leaves_the_output(
    server: RunningServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = write(tmp_path, {"prompt": "x"}, {"messages": []})
    out.write_text("of yesterday")
    assert main([file, "--out", str(out), "--url", server.base_url]) == 1
    assert "line 2: url must be the batch's endpoint" in capsys.readouterr().err
    for wrong, message in (([file, "--out", str(out), "--url", "http://127.0.0.1:1"], "does not answer"),):
        assert main(wrong) == 1
        assert message in capsys.readouterr().err
    assert main([file, "--out", str(out), "--url", server.base_url, "--", "--dtype", "float32"]) == 2
    assert out.read_text() == "of yesterday"


def test_an_output_that_cannot_be_written_is_told_of_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = write(tmp_path, {"prompt": "x"})
    (tmp_path / "folder").mkdir()
    for out, message in (("none/out.jsonl", "No such file or directory"), ("folder", "Is a directory")):
        assert main([file, "--out", str(tmp_path / out), "--model", "no-such-model"]) == 1
        told = capsys.readouterr().err
        assert message in told
        assert "could not be served" not in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "in.jsonl"]


def test_a_full_disk_costs_no_answer_of_its_own_server(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("hi")
    faults, replace = iter([OSError(28, "No space left on device")] * 2), Path.replace

    def full(path: Path, target: Path) -> Path:
        if fault := next(faults, None):
            raise fault
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", full)
    monkeypatch.setattr(batch_command, "own_server", lambda model, options: nullcontext(server.base_url))
    monkeypatch.setattr(batch_command, "_RETRY_S", 0.01)
    file, out = write(tmp_path, *({"prompt": f"number {n}"} for n in range(5)))
    assert main([file, "--out", str(out)]) == 0
    assert len(out.read_text().splitlines()) == 5
    assert capsys.readouterr().err.count("No space left on device") == 2


_IN_A_GROUP = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a shell
from service.chat_client import batch_command, progress_bar
progress_bar._EVERY_S = 0.0
sys.exit(batch_command.main(sys.argv[1:]))
"""


@contextmanager
def answering(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The command with a model of its own, in a process group of its own, when some of its lines are answered and the
    others take long; and its output."""
    model = write_dummy_folder(tmp_path / "model")
    lengths = [2] * 4 + [4000] * 20
    file, out = write(tmp_path, *({"prompt": "x", "max_tokens": n, "ignore_eos": True} for n in lengths))
    options = ["--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "16MiB", "--max-num-seqs", "8"]
    command = [sys.executable, "-c", _IN_A_GROUP, file, "--out", str(out), "--model", str(model), "--", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        try:
            while "4/24" not in (line := process.stderr.readline()):
                assert line, "it has ended"
            yield process, out
        finally:
            process.kill()


def test_ctrl_c_keeps_the_answers_so_far(tmp_path: Path) -> None:
    with answering(tmp_path) as (process, out):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        told = process.communicate(timeout=60)[1]
    assert "cancelled: 4 answers and 0 errors of 24 requests" in told, told
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(int(result["custom_id"]) for result in results if result["response"] is not None) == [1, 2, 3, 4]
    assert len(results) == 24


def test_ctrl_c_twice_keeps_them_too(server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second comes while the batch is being cancelled; by the time it is cancelled again, it may be over."""
    server.say("hi")
    interrupts = iter([True, True])

    def interrupted(of_class: type, name: str, *, first: bool) -> None:
        """Calls raise KeyboardInterrupt while there are interrupts, before or after they are made."""
        real = getattr(of_class, name)

        def call(self: Server, *arguments: Any, **named: Any) -> Any:
            if first and next(interrupts, False):
                raise KeyboardInterrupt
            told = real(self, *arguments, **named)
            if not first and next(interrupts, False):
                raise KeyboardInterrupt
            return told

        monkeypatch.setattr(of_class, name, call)

    interrupted(Server, "batch_events", first=True)
    interrupted(Server, "cancel_batch", first=False)
    file, out = write(tmp_path, *({"prompt": f"number {n}"} for n in range(5)))
    main([file, "--out", str(out), "--url", server.base_url])
    assert len(out.read_text().splitlines()) == 5


def test_ctrl_c_when_the_batch_is_over_keeps_them(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.say("hi")
    interrupts = iter([True])

    def watched(*arguments: Any, **named: Any) -> Iterator[BatchState | bytes]:
        told = list(watch_batch(*arguments, **named))
        if next(interrupts, False):
            raise KeyboardInterrupt
        yield from told

    monkeypatch.setattr(batch_command, "watch_batch", watched)
    file, out = write(tmp_path, *({"prompt": f"number {n}"} for n in range(5)))
    assert main([file, "--out", str(out), "--url", server.base_url]) == 0
    assert len(out.read_text().splitlines()) == 5


def test_ctrl_c_before_there_is_a_batch_is_told_in_a_line(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def upload(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "upload", upload)
    file, out = write(tmp_path, {"prompt": "x"})
    assert main([file, "--out", str(out), "--url", server.base_url]) == 130
    assert capsys.readouterr().err == "headrace batch: interrupted\n"
    assert not out.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_its_server_and_its_files(tmp_path: Path, number: int) -> None:
    with answering(tmp_path) as (process, _):
        (server,) = children_of(process.pid)
        folder = Path(arguments_of(server)[arguments_of(server).index("--data-dir") + 1])
        assert folder.is_dir()
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert not Path(f"/proc/{server}").exists()
        assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_its_server_ends_with_it_although_it_is_killed(tmp_path: Path) -> None:
    with answering(tmp_path) as (process, _):
        (server,) = children_of(process.pid)
        process.kill()
        process.wait()
        deadline_s = time.monotonic() + 20
        while runs(server):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ctrl_c_while_its_server_ends_kills_it(tmp_path: Path) -> None:
    with answering(tmp_path) as (process, out):
        assert process.stderr is not None
        (server,) = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        while "cancelled: 4 answers" not in (line := process.stderr.readline()):
            assert line, "it has ended"
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.communicate(timeout=60)[1]
        assert process.returncode == 130
        assert not Path(f"/proc/{server}").exists()
        assert out.exists()


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def runs(pid: int) -> bool:
    """Not as a zombie that nobody asks for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def arguments_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_a_model_is_loaded_for_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_dummy_folder(tmp_path / "model")
    file, out = write(tmp_path, *({"prompt": f"number {n}", "max_tokens": 3} for n in range(5)))
    options = ["--load-format", "dummy", "--device", "cpu", "--kv-cache-memory", "16MiB"]
    assert main([file, "--out", str(out), "--model", str(model), "--", *options]) == 0
    assert len(out.read_text().splitlines()) == 5
    capsys.readouterr()
    assert main([file, "--out", str(out), "--", "--no-such-setting"]) == 1
    told = capsys.readouterr().err
    assert "the model could not be served" in told
    assert "no-such-setting" in told
