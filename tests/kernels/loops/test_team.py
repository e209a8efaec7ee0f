from __future__ import annotations

import importlib
import os

import pytest
import torch


@pytest.fixture(scope="module")
def loop():
    """out[i] += number, each item once."""
    from kernels.loops.bf16 import count_up, float32_at, float_from_bits, int64_at
    from kernels.loops.team import Loop

    def body(arguments):
        a = int64_at(arguments, 4)
        out = float32_at(a[2], a[1])
        item = count_up(arguments)
        while item < a[1]:
            out[item] += float_from_bits(a[3])
            item = count_up(arguments)

    return Loop(body)


@pytest.mark.pairwise
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("num_items", [0, 1, 1000])
def test_every_item_is_computed_once(loop, num_items, num_threads, parallel):
    from kernels.loops.team import float_bits

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        out = torch.zeros(num_items)
        loop(parallel, num_items, out.data_ptr(), float_bits(0.1))
        assert torch.equal(out, torch.full((num_items,), 0.1))
    finally:
        torch.set_num_threads(before)


def test_runs_where_nothing_can_be_kept_on_disk(monkeypatch):
    from numba.core.ccallback import CFunc

    from kernels.loops import team
    from kernels.loops.bf16 import count_up

    def refuse(self):
        raise RuntimeError("cannot cache function: no locator available")

    def body(arguments):
        count_up(arguments)

    monkeypatch.setattr(CFunc, "enable_caching", refuse)
    taken = torch.zeros(2, dtype=torch.int64)
    team.Loop(body)._call(taken.data_ptr())
    assert taken.tolist() == [1, 0]


def body_in_a_file(folder, monkeypatch, name):
    """Of a loop without work, whose compiled form is kept in that folder."""
    (folder / f"{name}.py").write_text("def body(arguments):\n    pass\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")  # kept beside the file, whatever the environment asks for
    return importlib.import_module(name).body


def test_what_was_compiled_before_the_common_parts_changed_is_compiled_anew(tmp_path, monkeypatch):
    from kernels.loops.team import Loop

    body = body_in_a_file(tmp_path, monkeypatch, "body_of_test")
    Loop(body)
    (kept,) = tmp_path.rglob("body_of_test.*.nbi")
    os.utime(kept, (2e9, 2e9))
    Loop(body)
    assert kept.stat().st_mtime == 2e9, "nothing has changed"
    os.utime(kept, (1e9, 1e9))
    Loop(body)
    assert kept.stat().st_mtime > 1e9


def test_what_is_kept_may_be_damaged_or_gone(tmp_path, monkeypatch):
    """As after a full disk, or where another process that starts has removed it."""
    from kernels.loops.team import Loop

    body = body_in_a_file(tmp_path, monkeypatch, "body_of_damaged_test")
    Loop(body)
    (kept,) = tmp_path.rglob("body_of_damaged_test.*.nbi")
    kept.write_bytes(kept.read_bytes()[:20])
    Loop(body)
    kept.unlink()
    kept.symlink_to(tmp_path / "nowhere")
    Loop(body)
