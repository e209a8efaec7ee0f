from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import pytest
import torch

pytest.importorskip("triton")

from kernels import compile_processes
from kernels.compile_ahead import _compiled, note_launches
from kernels.compile_server import compile_all, serve
from kernels.optional_triton import triton
from kernels.silu_and_mul import _silu_and_mul_kernel

TARGET = {"backend": "cuda", "arch": 90, "warp_size": 32}
pytestmark = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="nothing is compiled")


@pytest.fixture
def driver(monkeypatch):
    """As much of Triton's as compiling needs."""
    found = triton.runtime.driver
    active = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: triton.backends.compiler.GPUTarget(**TARGET),
        launcher_cls=lambda source, metadata: None,
    )
    monkeypatch.setattr(found, "_active", active)
    monkeypatch.setattr(found, "set_active", lambda active: None)
    return active


class Function:
    """As much of a Triton function as is compiled; says in a file which process compiled it by which hash."""

    def __init__(self, name, file, length=1):
        self.src, self.hash = " " * length, None
        self._name, self._file = name, file

    def preload(self, specialization):
        if specialization == "fault":
            raise RuntimeError("no such instruction")
        if specialization == "crash":
            os._exit(1)
        with self._file.open("a") as file:
            file.write(f"{os.getpid()} {self._name} {self.hash} {specialization}\n")
        return SimpleNamespace(src=None, metadata=None)


@pytest.fixture
def functions(driver, tmp_path, monkeypatch):
    module, file = ModuleType("some_kernels"), tmp_path / "compiled"
    module.short, module.long = Function("short", file), Function("long", file, length=9)
    monkeypatch.setitem(sys.modules, "some_kernels", module)
    return lambda: [line.split(" ") for line in file.read_text().splitlines()]


def test_each_kernel_is_compiled_once_by_another_process_and_the_longest_first(functions):
    wanted = [("some_kernels", name, f"hash-of-{name}", "x") for name in ("short", "long", "short")]
    assert compile_all(wanted, 1) == 3
    compiled = functions()
    assert [name for _, name, _, _ in compiled] == ["long", "short", "short"]
    assert [source_hash for _, _, source_hash, _ in compiled] == ["hash-of-long", "hash-of-short", "hash-of-short"]
    assert str(os.getpid()) not in {pid for pid, *_ in compiled}


@pytest.mark.parametrize("how", ["fault", "crash"])
def test_a_kernel_that_fails_is_not_counted_and_holds_up_no_other(how, functions):
    wanted = [("some_kernels", "long", "h", how), *[("some_kernels", "short", "h", str(n)) for n in range(5)]]
    assert compile_all(wanted, 2) == 5
    assert sorted(line[3] for line in functions()) == ["0", "1", "2", "3", "4"]


def test_a_line_for_each_request(functions):
    def request(*wanted):
        return json.dumps({"target": TARGET, "wanted": wanted}).encode()

    answers = []
    serve(2, iter([request(), request(("some_kernels", "short", "h", "x"))]), answers.append)
    assert answers == [b"0\n", b"1\n"]


class InThisProcess:
    """The server without its process: it forks from this one."""

    def compile(self, target, wanted):
        return compile_all(wanted, 2)


def test_who_asks_finds_in_the_cache_what_was_compiled(driver, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_processes, "running", InThisProcess)
    x, out = torch.zeros(4, 64), torch.zeros(4, 32)

    def launch():
        for block in (32, 64):
            _silu_and_mul_kernel[(4, 1)](x, out, 32, BLOCK=block, PDL=False, enable_fp_fusion=True)

    noted = note_launches(launch)
    with ThreadPoolExecutor(2) as pool:
        kernels, elsewhere = _compiled(noted, pool)
        assert (len(kernels), elsewhere) == (2, 2)
        assert all(kernel.asm["cubin"] for kernel in kernels)
        files = sorted(tmp_path.rglob("*"))
        again, elsewhere = _compiled(noted, pool)
        assert (len(again), elsewhere) == (2, 0), "nobody is asked for what is there"
    assert sorted(tmp_path.rglob("*")) == files
