from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, cwd=ROOT)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_process_with_the_status_and_a_word(number: signal.Signals):
    code = """
    import os, signal, sys, time
    from service.process.early_signals import end_at_signals
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it would be ignored
    end_at_signals(3)
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(60)
    """
    done = run(code, str(int(number)))
    assert (done.returncode, done.stderr) == (3, f"headrace: {number.name}: ending\n")


def test_a_signal_that_comes_while_another_program_is_executed_waits_for_it():
    code = """
    import os, signal, sys, time
    from service.process.early_signals import end_at_signals, hold_signals
    hold_signals()
    if len(sys.argv) == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
    time.sleep(0.1)
    print("still here", flush=True)
    end_at_signals()
    time.sleep(60)
    """
    done = run(code)
    assert (done.returncode, done.stdout) == (0, "still here\n")
    assert done.stderr == "headrace: SIGTERM: ending\n"


def test_under_nohup_a_closed_terminal_changes_nothing():
    code = """
    import os, signal
    from service.process.early_signals import end_at_signals
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_at_signals()
    os.kill(os.getpid(), signal.SIGHUP)
    print("still here")
    """
    assert run(code).stdout == "still here\n"


def test_the_word_is_left_out_where_it_would_have_to_be_waited_for():
    code = """
    import os, signal, time
    from service.process.early_signals import end_at_signals
    read_end, write_end = os.pipe()
    os.dup2(write_end, 2)
    os.set_blocking(2, False)
    try:
        while os.write(2, b"x" * 4096):
            pass
    except BlockingIOError:
        os.set_blocking(2, True)
    end_at_signals()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
    """
    assert run(code).returncode == 0
