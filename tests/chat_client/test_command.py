from __future__ import annotations

import subprocess
import sys

from tests.e2e.server_process import ServerProcess


def chat(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", "chat", *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120)


def test_chats_and_answers_batches_with_the_real_service():
    with ServerProcess("--device", "cpu", "--dtype", "float32", "--scheduling-policy", "priority") as server:
        lines = ['/batch ["What is ORCA?", "Hello!"] [64]', *["What is Headrace?"] * 8, "/answers", "/quit"]
        done = chat(server.url, typed="\n".join(lines) + "\n")
        assert done.returncode == 0, done.stderr
        assert "[batch 1: 2 prompts are being answered]" in done.stdout
        assert done.stdout.count("[batch 1 is done: /answers]") == 1
        assert done.stdout.index("batch 1, 1: What is ORCA?") < done.stdout.index("batch 1, 2: Hello!")
        assert "failed" not in done.stdout
        unknown = chat(server.url, "--model", "another")
        assert (unknown.returncode, unknown.stdout) == (1, "")
        assert "there is no model 'another'; there are: headrace-quickstart" in unknown.stderr


def test_without_a_server_it_says_so():
    done = chat("http://127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("headrace chat: the server at 127.0.0.1:1 does not answer")
