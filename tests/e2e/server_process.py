"""The real service in a process of its own, for tests that speak to it from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from tests.e2e.forked_process import ROOT, ForkedProcess, fork_server

READY_WITHIN_S = 90
HAS_GPU = Path("/dev/nvidiactl").exists()

DUMMY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "eos_token_id": 2,
}


def write_dummy_folder(folder: Path) -> Path:
    """A model that is nothing but a config.json, to be served with `--load-format dummy`."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(DUMMY_CONFIG))
    return folder


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """And without what pytest tells of itself, which differs from test to test."""
    return {k: v for k, v in environment.items() if not k.startswith(("HEADRACE_", "PYTEST_"))}


def begin_fork_server() -> None:
    """In the process that workers are forked from: one for all of them."""
    if not HAS_GPU:
        fork_server(without_settings(os.environ))


def _execute(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


class ServerProcess:
    """`headrace serve ARGUMENTS` on a free port. A context manager: the process is gone when it ends.

    module: is run in its place, with the same arguments. within: a command that runs the command behind it. executed:
    the README's command itself.

    Unless it is executed, it is forked from a process that has imported the service (fork_server.py), which is most of
    what its start costs; and its ranks from it (spare_processes.py). Its main, arguments, environment, standard streams
    and signals are the command's, but: what is imported when is not; /proc/PID/cmdline, the parent process and the seed
    of Python's hashes are the fork server's; one that will have ranks has a line to each; garbage collections skip what
    was imported; the interpreter is not taken apart at its end. On a machine with a GPU, all are executed.
    """

    def __init__(
        self,
        *arguments: str,
        wait_until_ready: bool = True,
        module: str | None = None,
        within: Sequence[str] = (),
        executed: bool = False,
    ) -> None:
        self._wait_until_ready = wait_until_ready
        environment = without_settings(os.environ)
        command = [*([module] if module else ["service", "serve"]), "--port", "0", *arguments]
        self.process: subprocess.Popen[str] | ForkedProcess = (
            _execute([*within, sys.executable, "-m", *command], environment)
            if executed or within or HAS_GPU
            else fork_server(environment).start(command)
        )
        self.log: list[str] = []
        self.url = ""

    def __enter__(self) -> ServerProcess:
        if self._wait_until_ready:
            try:
                self.url = self.wait_for_line("ready at ").split("ready at ")[1].split()[0]
            except BaseException:
                self._end()
                raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def wait_for_line(self, text: str) -> str:
        """The first line of the log from here on that holds `text`."""
        deadline_s = time.monotonic() + READY_WITHIN_S
        while time.monotonic() < deadline_s:
            line = self._next_line()
            if text in line:
                return line
        raise AssertionError(f"no {text!r} within {READY_WITHIN_S} s:\n" + "".join(self.log))

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> int:
        """Exit status; the rest of the log is in `log` then."""
        _, rest = self.process.communicate(timeout=timeout_s)
        self.log.append(rest)
        return self.process.returncode

    def gauge(self, name: str) -> float:
        """Value of an unlabelled metric, as /metrics shows it now."""
        for line in httpx.get(f"{self.url}/metrics").text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(f"no metric {name}")

    def wait_for_gauge(self, name: str, value: float) -> None:
        """Fails unless the metric has the value within two seconds."""
        deadline_s = time.monotonic() + 2
        while self.gauge(name) != value:
            assert time.monotonic() < deadline_s, f"{name} is {self.gauge(name)}, not {value}"
            time.sleep(0.05)

    def _next_line(self) -> str:
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.log.append(line)
        if not line and self.process.poll() is not None:
            raise AssertionError("the server ended:\n" + "".join(self.log))
        return line
