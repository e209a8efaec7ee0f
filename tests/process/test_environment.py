from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from service.layers.packed_weight import can_pack
from service.process.environment import (
    bounded_caches,
    huge_pages,
    libc_version,
    limited_spinning,
    single_threaded_numpy,
)

GROWTH_IN_BYTES = """
import os
from service.process.environment import restart_prepared
restart_prepared()
import torch
from service.layers.packed_weight import WeightForm, can_pack, pack_weight
assert can_pack(torch.bfloat16)
weight = pack_weight(torch.ones(64, 64, dtype=torch.bfloat16), WeightForm.ONEDNN)

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def use(sizes):
    for size in sizes:
        weight(torch.ones(size, 64, dtype=torch.bfloat16), None)

use(range(2, 150))
before = resident()
use(range(150, 600))
print(resident() - before)
"""
SET_BEFORE = {"GOMP_SPINCOUNT", "GLIBC_TUNABLES", "OMP_WAIT_POLICY", "OPENBLAS_NUM_THREADS", *bounded_caches({})}
SHOWS_THE_RESTART = """
import os, sys
from service.process.environment import restart_prepared
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


def test_numpy_makes_no_threads_beside_a_gpu_unless_the_environment_says_how_many():
    assert single_threaded_numpy({}, has_gpu=True) == {"OPENBLAS_NUM_THREADS": "1"}
    assert single_threaded_numpy({"OPENBLAS_NUM_THREADS": "4"}, has_gpu=True) == {}
    assert single_threaded_numpy({}, has_gpu=False) == {}, "torch may multiply by the same library"


def test_caches_are_bounded_unless_the_environment_says_how_large():
    assert set(bounded_caches({})) == {"LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"}
    assert set(bounded_caches({"LRU_CACHE_CAPACITY": "7"})) == {"ONEDNN_PRIMITIVE_CACHE_CAPACITY"}


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="no packed bf16 linears on this machine")
def test_memory_does_not_grow_with_the_number_of_batch_sizes():
    plain = {k: v for k, v in os.environ.items() if k not in bounded_caches({})}
    command = [sys.executable, "-c", GROWTH_IN_BYTES]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=plain, timeout=120)
    assert int(done.stdout) < 40 * 2**20  # by the libraries' own bounds some 200 MB


def test_the_library_is_named():
    version = libc_version()
    assert version is None or version.split()[0] == "glibc"


def test_the_program_is_started_anew_once_with_its_arguments_and_options():
    plain = {k: v for k, v in os.environ.items() if k not in SET_BEFORE}
    command = [sys.executable, "-O", "-c", SHOWS_THE_RESTART, "a b", "--c"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=plain, timeout=60)
    first, second, last = done.stdout.splitlines()
    assert first == second
    assert first.endswith("['a b', '--c'] 1")
    assert last == "10000 False"
