from __future__ import annotations

import subprocess
import sys

import pytest

ASK = """
import resource, sys
from service.process.open_files import connections_allowed
soft, hard, wanted = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(connections_allowed(wanted), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed", "raised"),
    [
        (256, 900, 700, 700, 800),  # the system grants what is needed, and no more is asked for
        (256, 900, 2000, 800, 900),
        (256, 256, 2000, 156, 256),
        (900, 900, 100, 100, 900),
        (64, 200, 10, 10, 110),
    ],
)
def test_the_limit_is_raised_as_far_as_it_may(soft: int, hard: int, wanted: int, allowed: int, raised: int) -> None:
    numbers = map(str, (soft, hard, wanted))  # in a process of its own: a hard limit cannot be raised again
    done = subprocess.run([sys.executable, "-c", ASK, *numbers], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(allowed), str(raised), str(hard)]


@pytest.mark.parametrize(("files", "wanted", "needed"), [(64, 10, 110), (64, 10_000, 116), (115, 10_000, 116)])
def test_too_few_are_refused_with_both_numbers(files: int, wanted: int, needed: int) -> None:
    numbers = map(str, (files, files, wanted))
    done = subprocess.run([sys.executable, "-c", ASK, *numbers], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"the limit is {files} (ulimit -n), but at least {needed} are needed" in done.stderr
