"""The program as it is run: through pipes, and at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.e2e.server_process import ServerProcess

COMMAND = [sys.executable, "-m", "service", "chat"]


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--device", "cpu", "--dtype", "float32", "--scheduling-policy", "priority") as server:
        yield server


def chat(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=typed, capture_output=True, text=True, timeout=120)


def test_chats_and_answers_batches_with_the_real_service(server: ServerProcess):
    written = list[str]()
    with subprocess.Popen([*COMMAND, server.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as chatting:
        reading = Thread(target=lambda: written.extend(chatting.stdout or ()))
        reading.start()
        for line in ('/batch ["What is ORCA?", "Hello!"] [64]', "What is Headrace?"):
            print(line, file=chatting.stdin, flush=True)
        stop_s = time.monotonic() + 60
        while not any("is done: /answers]" in line for line in written) and time.monotonic() < stop_s:
            print(file=chatting.stdin, flush=True)  # an empty line asks nothing
            time.sleep(0.1)
        print("/answers\n/quit", file=chatting.stdin, flush=True)
        reading.join(60)
    assert chatting.returncode == 0
    told = "".join(written)
    begun = re.match(r"\[batch (batch_\w+): 2 prompts are being answered\]\n", told)
    assert begun is not None, "it has the server's id"
    assert told.count(f"[batch {begun[1]} is done: /answers]\n") == 1
    assert told.index(f"batch {begun[1]}, 1: What is ORCA?") < told.index(f"batch {begun[1]}, 2: Hello!")
    assert "failed" not in told
    unknown = chat(server.url, "--model", "another")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "there is no model 'another'; there are: headrace-quickstart" in unknown.stderr


def test_a_pipe_gets_the_answer_and_nothing_else_and_failures_are_the_exit_status(server: ServerProcess):
    done = chat(server.url, typed="/set temperature 0\nWhat is Headrace?")
    assert done.returncode == 0
    told, answer = done.stdout.splitlines()
    assert told == "temperature is 0"
    assert answer.startswith("Headrace is")
    failed = chat(server.url, typed="/set temperature 3\nhi\n")
    assert failed.returncode == 1
    assert "temperature must be between 0 and 2" in failed.stdout


def test_without_a_server_it_says_so():
    done = chat("http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("headrace chat: the server at 127.0.0.1:1 does not answer")


class AtTerminal:
    """The program with somebody at its keyboard."""

    def __init__(self, *arguments: str, state: Path) -> None:
        self._keyboard, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm-256color", "XDG_STATE_HOME": str(state)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _AT_OWN_TERMINAL, *arguments],
            stdin=inside,
            stdout=inside,
            stderr=inside,
            env=environment,
            start_new_session=True,
        )
        os.close(inside)
        self._shown = ""

    def ask(self, keys: str, answer: str, until: str = r"[\s\S]*> ") -> None:
        """Type, and wait for this in what is shown from then on, and then for the prompt. Ctrl-C is pressed again every
        few seconds: between a prompt and the wait for keys Python hears it with the next key only."""
        self._shown = ""
        os.write(self._keyboard, keys.encode())
        deadline_s = time.monotonic() + 60
        again_s = time.monotonic() + 5
        while not re.search(answer + until, self._shown):
            assert time.monotonic() < deadline_s, self._shown[-2000:]
            if keys == "\x03" and time.monotonic() > again_s:
                again_s += 5
                os.write(self._keyboard, keys.encode())
            if select.select([self._keyboard], [], [], 1)[0]:
                new = os.read(self._keyboard, 65_536).decode(errors="replace")
                self._shown += new
                if "\x1b[6n" in new:  # where is the cursor?
                    os.write(self._keyboard, b"\x1b[1;1R")

    def leave(self) -> int:
        """Exit status."""
        os.write(self._keyboard, b"\x04")
        return self.process.wait(30)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keyboard)


_AT_OWN_TERMINAL = """
import fcntl, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background of a shell
from service.chat_client.command import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("plain", [False, True])
def test_at_a_terminal(server: ServerProcess, tmp_path: Path, plain: bool):
    terminal = AtTerminal(server.url, *(["--plain"] if plain else []), state=tmp_path)
    try:
        terminal.ask("", r"Ctrl-D")
        terminal.ask("/set temperature 0\r", "temperature is 0")
        terminal.ask("What is Headrace?\r", r"tokens: the first after [\d.]+ s, then [\d.]+ tokens/s")
        terminal.ask("/set ignore_eos true\r", "ignore_eos is true")
        terminal.ask("/set max_tokens 1900\r", "max_tokens is 1900")
        terminal.ask("Tell me more\r", r"[a-z]{3}", until="")
        server.wait_for_gauge("headrace_requests_running", 1)
        terminal.ask("\x03", r"\[stopped\]")
        server.wait_for_gauge("headrace_requests_running", 0)
        terminal.ask("/set max_tokens 8\r", "max_tokens is 8")
        terminal.ask("/new\r", "a new conversation")
        terminal.ask("And now\r", r"8 tokens: the first")
        terminal.ask("\x03", "Ctrl-D leaves")
        assert terminal.leave() == 0
    finally:
        terminal.close()
    assert (tmp_path / "headrace" / "chat_history").exists() != plain
