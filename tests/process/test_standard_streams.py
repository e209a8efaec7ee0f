from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

AFTER_A_RESTART = """
import os, stat, sys
report = open({report!r}, "w")
report.write(repr([stat.S_ISCHR(os.fstat(descriptor).st_mode) for descriptor in range(3)]))
print("to nobody", flush=True)
print("to nobody", file=sys.stderr, flush=True)
"""
BEFORE = """
import os, sys
from service.process.standard_streams import open_standard_streams
open_standard_streams()
os.execv(sys.executable, [sys.executable, "-c", {after!r}])
"""


@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&- 2>&-", "2>&- </dev/null >/dev/null"])
def test_closed_ones_are_the_null_device_past_a_restart(closed: str, tmp_path: Path):
    report = tmp_path / "report"
    program = BEFORE.format(after=AFTER_A_RESTART.format(report=str(report)))
    subprocess.run(f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} {closed}", shell=True, check=True)
    assert report.read_text() == "[True, True, True]"


def test_open_ones_stay():
    program = "from service.process.standard_streams import open_standard_streams as o; o(); print('here')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "here\n"
