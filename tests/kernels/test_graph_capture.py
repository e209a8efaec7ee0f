from __future__ import annotations

import gc

import pytest
import torch

from kernels.graph_capture import capture_graph

pytestmark = pytest.mark.gpu


def test_a_replay_does_what_was_launched():
    x = torch.zeros(4, device="cuda")
    graph, y = capture_graph(lambda: x + 1, torch.cuda.Stream())
    x.fill_(6)
    graph.replay()
    assert y.tolist() == [7.0] * 4


def test_garbage_that_holds_a_graph_is_not_collected_meanwhile():
    """Its end waits for the device, which ends a capture."""
    x = torch.zeros(4, device="cuda")
    garbage = [None]
    garbage[0], _ = capture_graph(lambda: x + 1, torch.cuda.Stream())
    garbage.append(garbage)

    def launch():
        y = x + 2
        _ = [[i] for i in range(10_000)]  # enough for several collections
        return y + 1

    was = gc.get_threshold()
    gc.set_threshold(10, 1, 1)
    try:
        del garbage
        graph, y = capture_graph(launch, torch.cuda.Stream())
    finally:
        gc.set_threshold(*was)
    graph.replay()
    assert y.tolist() == [3.0] * 4 and gc.isenabled()


def test_a_launch_that_fails_leaves_no_capture_behind():
    x = torch.zeros(4, device="cuda")

    def launch():
        _ = x + 1
        raise torch.OutOfMemoryError("injected")

    with pytest.raises(torch.OutOfMemoryError, match="injected"):
        capture_graph(launch, torch.cuda.Stream())
    torch.cuda.synchronize()
    assert gc.isenabled()
    graph, y = capture_graph(lambda: x + 1, torch.cuda.Stream())
    graph.replay()
    assert y.tolist() == [1.0] * 4
