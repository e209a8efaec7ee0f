from __future__ import annotations

import os
import subprocess
import sys

import pytest

from service.process_environment import huge_pages, libc_version, limited_spinning

SHOWS_THE_RESTART = """
import os, sys
from service.process_environment import restart_prepared
print(os.getpid(), sys.argv[1:], sys.flags.optimize)
restart_prepared()
print(os.environ.get("GOMP_SPINCOUNT"), "torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("environment", "added"),
    [
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "5"}, {}),
        ({"OMP_WAIT_POLICY": "active"}, {}),
    ],
)
def test_spinning_is_limited_unless_the_environment_says_how_to_wait(environment, added):
    assert limited_spinning(environment) == added


@pytest.mark.parametrize(
    ("environment", "libc", "is_added"),
    [
        ({}, "glibc 2.36", True),
        ({}, "glibc 2.35", True),
        ({}, "glibc 2.34.1", False),
        ({}, "glibc 3.0", True),
        ({}, None, False),
        ({}, "musl 1.2", False),
        ({"GLIBC_TUNABLES": ""}, "glibc 2.36", False),
    ],
)
def test_huge_pages_where_malloc_can(environment, libc, is_added):
    assert bool(huge_pages(environment, libc, has_gpu=False)) is is_added


def test_no_huge_pages_beside_a_gpu():
    assert huge_pages({}, "glibc 2.36", has_gpu=True) == {}


def test_the_library_is_named():
    version = libc_version()
    assert version is None or version.split()[0] == "glibc"


def test_the_program_is_started_anew_once_with_its_arguments_and_options():
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "GLIBC_TUNABLES", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-O", "-c", SHOWS_THE_RESTART, "a b", "--c"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=plain, timeout=60)
    first, second, last = done.stdout.splitlines()
    assert first == second
    assert first.endswith("['a b', '--c'] 1")
    assert last == "10000 False"
