from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from kernels.compile_ahead import _device_of_this_thread, compile_ahead
from kernels.optional_triton import triton

knobs = pytest.importorskip("triton").knobs


@pytest.fixture(autouse=True)
def launchers(request, monkeypatch):
    """(source, thread) of each launcher that was made and left alone; of Triton's driver no more is needed, but on a
    GPU."""
    made = []
    driver = SimpleNamespace(launcher_cls=lambda source, metadata: made.append((source, threading.get_ident())))
    if request.node.get_closest_marker("gpu") is None:
        monkeypatch.setattr(triton.runtime.driver, "_active", driver)
    return made


class Kernel:
    """As much of a compiled kernel as `compile_ahead` asks for."""

    def __init__(self, source, function):
        self.src, self.metadata = source, None
        self._function = function

    @property
    def run(self):
        self._function.loaded.append((self.src, threading.get_ident()))
        if self._function.does_not_load:
            raise RuntimeError("no room")
        return self


class Function:
    """As much of a Triton function as a launch's hook shows; two compile at once or wait for each other in vain."""

    def __init__(self, together=None, fault=None, does_not_load=False):
        self.compiled, self.loaded = [], []
        self.does_not_load = does_not_load
        self._together, self._fault = together, fault

    def launch(self, key):
        """What a launch of a kernel does that is not compiled: True if it is left out."""
        info = SimpleNamespace(jit_function=self, module="m", name="f")
        return knobs.runtime.jit_cache_hook(
            key=key,
            repr="f",
            fn=info,
            compile={"key": key, "specialization_data": f"data of {key}"},
            is_manual_warmup=False,
            already_compiled=False,
        )

    @property
    def cache_key(self):
        return f"source of {id(self)}"

    def preload(self, data):
        if self._together is not None:
            self._together.wait(timeout=10)
        if self._fault is not None:
            raise self._fault
        self.compiled.append(data)
        return Kernel(data, self)


def test_each_kernel_is_compiled_once_and_side_by_side(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    together = threading.Barrier(2)
    first, second = Function(together), Function(together)
    left_out = []
    num = compile_ahead(lambda: left_out.extend(f.launch(key) for f in (first, second, first) for key in ("a", "b")))
    assert num == 4
    assert left_out == [True] * 6
    assert sorted(first.compiled) == sorted(second.compiled) == ["data of a", "data of b"]


def test_kernels_are_loaded_by_one_thread_once_all_are_compiled(launchers):
    """Triton up to 3.6 may hand a thread the launcher that another thread loads at the same time."""
    function = Function()
    keys = [str(number) for number in range(20)]
    assert compile_ahead(lambda: [function.launch(key) for key in keys]) == 20
    assert sorted(function.loaded) == [(data, threading.get_ident()) for data in sorted(function.compiled)]
    assert sorted(source for source, _ in launchers) == sorted(function.compiled)
    assert threading.get_ident() not in {thread for _, thread in launchers}


def test_what_all_compilations_need_is_computed_once_before_them(monkeypatch):
    function, compiled_before = Function(), []
    monkeypatch.setattr(triton.runtime.cache, "triton_key", lambda: compiled_before.append(len(function.compiled)))
    assert compile_ahead(lambda: None) == 0
    assert compile_ahead(lambda: [function.launch(key) for key in ("a", "b")]) == 2
    assert compiled_before == [0]


def test_what_a_launch_that_is_left_out_would_have_written_is_zero():
    """Else a compiled kernel that reads it as ids looks outside its tensors."""
    made = []

    def launch():
        like = torch.ones(7, dtype=torch.int64)
        made.extend([torch.empty(7, dtype=torch.int64), torch.empty_like(like), like.new_empty(7, 2)])

    for _ in range(3):  # freed memory comes back with what it held
        torch.full((7,), 2**60)
        compile_ahead(launch)
    assert not any(tensor.any() for tensor in made)
    with torch.inference_mode():
        compile_ahead(launch)


def test_threads_compile_for_the_device_of_the_one_that_asks(monkeypatch):
    """Of a rank that has the fourth GPU."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    _device_of_this_thread()()
    assert chosen == [3]


def test_the_hook_is_as_before_even_after_a_fault():
    before = knobs.runtime.jit_cache_hook
    with pytest.raises(ValueError, match="no"):
        compile_ahead(lambda: (_ for _ in ()).throw(ValueError("no")))
    assert knobs.runtime.jit_cache_hook is before


def test_a_kernel_that_fails_is_left_to_its_launch(caplog):
    bad, good = Function(fault=RuntimeError("no such instruction")), Function()
    assert compile_ahead(lambda: (bad.launch("a"), good.launch("a"))) == 1
    assert good.compiled == ["data of a"]
    assert "was not compiled ahead" in caplog.text
    unloaded = Function(does_not_load=True)
    assert compile_ahead(lambda: (unloaded.launch("a"), good.launch("b"))) == 1
    assert "was not loaded ahead" in caplog.text


@pytest.mark.gpu
def test_what_was_compiled_ahead_is_not_compiled_again(tmp_path, monkeypatch):
    from kernels.rms_norm import rms_norm, rms_norm_reference
    from kernels.silu_and_mul import silu_and_mul

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, weight = torch.randn(5, 1744, device="cuda"), torch.randn(1744, device="cuda")
    num = compile_ahead(lambda: (rms_norm(x, weight, 1e-5), rms_norm(x[:2], weight, 1e-5), silu_and_mul(x)))
    assert num >= 2
    compiled = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda *, repr, **_: compiled.append(repr))
    out = rms_norm(x, weight, 1e-5)
    silu_and_mul(x)
    assert compiled == []
    torch.testing.assert_close(out, rms_norm_reference(x, weight, 1e-5), atol=1e-5, rtol=1e-5)
