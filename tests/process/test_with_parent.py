from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

PARENT = """
import os, subprocess, sys, time
run = [sys.executable, *sys.argv[1:], str(os.getpid()), "http.server", "0"]
child = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""
ELSEWHERE = """
import sys
sys.platform = "darwin"
from service.process.with_parent import main
main()
"""


@pytest.mark.parametrize(
    "module", [("-m", "service.process.with_parent"), ("-c", ELSEWHERE)], ids=["here", "elsewhere"]
)
def test_a_server_ends_with_a_parent_that_is_killed(module: tuple[str, str]) -> None:
    parent = subprocess.Popen([sys.executable, "-u", "-c", PARENT, *module], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        assert "http.server" in (child / "cmdline").read_text(), "it runs"
        parent.kill()
    deadline_s = time.monotonic() + 20
    while _runs(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def _runs(process: Path) -> bool:
    """Not a zombie that nobody asks for."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
