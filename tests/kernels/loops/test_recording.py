from __future__ import annotations

import pytest
import torch


@pytest.fixture
def chain(loops):
    """x [T, 64] -> [T, 64] by 101 loops, each of which needs all of the one before; and its input."""
    widen, back = (loops.few_rows_linear((torch.randn(n, m) / 8).bfloat16()) for n, m in ((192, 64), (64, 96)))
    weight, x = (torch.rand(64) + 0.5).bfloat16(), torch.randn(7, 64).bfloat16()

    def compute():
        normed = loops.rms_norm(x, weight, 1e-5)
        for _ in range(20):
            branch = back(loops.silu_and_mul(widen(normed, None)), None)
            residual = loops.rms_norm(normed, weight, 1e-5)
            normed, residual = loops.add_rms_norm(branch, residual, weight, 1e-5)
        return normed.view(7, 2, 32).flatten(1)[1:]

    return compute, x


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_replay_computes_what_the_loops_do_one_by_one(loops, chain, num_threads):
    compute, x = chain
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        want_first = compute()
        recorded = loops.new_recorder().record(compute)
        assert torch.equal(recorded.result, want_first)
        for _ in range(30):
            x.normal_()
            want = compute()
            assert torch.equal(recorded.replay(), want)
    finally:
        torch.set_num_threads(before)


def test_recordings_that_take_turns_share_memory(loops, chain):
    compute, x = chain
    recorder = loops.new_recorder()
    recordings = [recorder.record(compute) for _ in range(3)]
    for recorded in recordings * 2:
        x.normal_()
        want = compute()
        assert torch.equal(recorded.replay(), want)


def test_rows_are_looked_up_again(loops):
    ids, weight = torch.tensor([3, 1]), torch.ones(64).bfloat16()
    table = torch.randn(10, 64).bfloat16()

    def compute():
        return loops.rms_norm(table.index_select(0, ids), weight, 1e-5)

    recorded = loops.new_recorder().record(compute)
    ids[:] = torch.tensor([9, 9])
    want = compute()
    assert torch.equal(recorded.replay(), want)


@pytest.mark.parametrize(
    "torchs", [lambda x: x + 1, lambda x: x.t().flatten(), lambda x: x.index_select(0, x[0].long())]
)
def test_what_a_loop_does_not_do_is_refused(loops, torchs):
    weight = torch.ones(64).bfloat16()
    x = torch.zeros(2, 64).bfloat16()
    recorder = loops.new_recorder()
    assert recorder.record(lambda: torchs(loops.rms_norm(x, weight, 1e-5))) is None
    assert recorder.record(lambda: loops.rms_norm(x, weight, 1e-5)) is not None


def test_a_fault_ends_the_recording(loops):
    from kernels.loops.team import recorded_calls

    def compute():
        raise ValueError

    with pytest.raises(ValueError):
        loops.new_recorder().record(compute)
    assert recorded_calls.get() is None


def test_memory_is_used_again_once_no_view_is_left():
    from kernels.loops.recording import Arena

    arena = Arena()
    first = arena.empty((4, 8), torch.bfloat16)
    address, view = first.data_ptr(), first.view(-1)[2:]
    assert address % 64 == 0 and first.shape == (4, 8) and first.dtype is torch.bfloat16
    del first
    other = arena.empty((32,), torch.bfloat16)
    assert other.data_ptr() != address
    del view
    assert arena.empty((16,), torch.float32).data_ptr() == address
