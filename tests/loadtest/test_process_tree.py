import subprocess
import sys

import pytest

from loadtest.process_tree import holdings_of

CHILD = """
import subprocess, sys, threading
held, files = bytearray(b"x") * int(sys.argv[1]), [open("/dev/null") for _ in range(20)]
threading.Thread(target=threading.Event().wait, daemon=True).start()
below = [subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1], "", ], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE)] if sys.argv[2] else []
for each in below:
    each.stdout.readline()
print("there", flush=True)
sys.stdin.read()
"""


def test_descendants_are_counted() -> None:
    size = 50 << 20
    command = [sys.executable, "-c", CHILD, str(size), CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        held = holdings_of(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(20)
    assert held.processes == 2
    assert held.threads == 4
    assert held.open_files > 40
    assert 2 * 50 < held.resident_mb < 2 * 50 + 200


def test_a_process_that_has_ended_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(20)
        with pytest.raises(ProcessLookupError):
            holdings_of(process.pid)
