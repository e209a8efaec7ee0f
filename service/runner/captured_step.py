"""A step captured as a CUDA graph, and the lifetime of its outputs' memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kernels.graph_capture import capture_graph
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_step import StepOutputs


class CapturedStep:
    """A graph with its inputs and outputs (ids and logits, or the hidden states to draw from). It is replayed once, on
    nothing but padding, to upload it to the device: 0.2 to 0.4 ms for any size of Llama-8B.

    draw_filtered: draws again from the outputs, now with filters. If given, it is captured as a second graph. filtered:
    replays that one after `graph`, and returns its outputs; None without.
    """

    def __init__(
        self,
        compute: Callable[[GraphInputs], StepOutputs | Tensor],
        inputs: GraphInputs,
        pool: Any,
        stream: torch.cuda.Stream,
        draw_filtered: Callable[[GraphInputs, StepOutputs], StepOutputs] | None = None,
    ) -> None:
        self.inputs = inputs
        self.filtered: Callable[[], StepOutputs] | None = None
        compute(inputs)
        torch.cuda.synchronize()
        self.graph, outputs = capture_graph(lambda: compute(inputs), stream, pool)
        self.graph.replay()
        if draw_filtered is not None and isinstance(outputs, StepOutputs):
            self.filtered = _captured_filter(draw_filtered, inputs, outputs, pool, stream)
        torch.cuda.synchronize()  # it reads inputs that the next step overwrites
        self.outputs = _kept(outputs)


def _captured_filter(
    draw_filtered: Callable[[GraphInputs, StepOutputs], StepOutputs],
    inputs: GraphInputs,
    outputs: StepOutputs,
    pool: Any,
    stream: torch.cuda.Stream,
) -> Callable[[], StepOutputs]:
    """outputs: of the step's graph. The caller holds them until this graph has memory of its own."""
    draw_filtered(inputs, outputs)
    torch.cuda.synchronize()
    graph, drawn = capture_graph(lambda: draw_filtered(inputs, outputs), stream, pool)
    graph.replay()
    kept = StepOutputs(drawn.token_ids, _without_holding(drawn.logits))

    def replay() -> StepOutputs:
        graph.replay()
        return kept

    return replay


def _kept(outputs: StepOutputs | Tensor) -> StepOutputs | Tensor:
    """A graph's outputs. The ids keep their memory. The memory of the others is not held, so the next capture may use
    it too: logits are the largest tensor by far."""
    if isinstance(outputs, StepOutputs):
        return StepOutputs(outputs.token_ids, _without_holding(outputs.logits))
    return _without_holding(outputs)


def _without_holding(tensor: Tensor) -> Tensor:
    """A tensor over the same memory that does not keep the allocation alive. The caller makes sure that something else
    does."""
    as_bytes = tensor.view(torch.uint8)
    described = _Memory(as_bytes.data_ptr(), tuple(as_bytes.shape))
    return torch.as_tensor(described, device=tensor.device).view(tensor.dtype)


class _Memory:
    """Device memory as numba's CUDA array interface describes it, which torch reads."""

    def __init__(self, address: int, shape: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": "|u1", "data": (address, False), "version": 2}
