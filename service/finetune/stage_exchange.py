"""What a pipeline stage exchanges with the others during a training.

The residual stream goes from stage to stage, as requests' hidden states do, and its gradient comes back; each once per
micro-batch, in the layer step of the layer that needs it. So nothing is in transit between two layer steps, when a
micro-batch may be dropped. The gradient norms go forward, each stage adding its own, and the result comes back.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from service.finetune.trained_model import ModelPass
from service.finetune.training_state import ParameterLayout
from service.layers.pipeline_stage import PipelineStage, is_first, is_last


class StageExchange:
    """For one training. layers: this stage's layers, numbered over all stages. Every layer step exchanges its tensors,
    whatever has gone wrong: for a failed micro-batch, NaN (`skip_forward`, `skip_backward`)."""

    def __init__(
        self, stage: PipelineStage, layers: range, hidden_size: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._stage = stage
        self._layers = layers
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._waited_s = 0.0
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def forward(self, layer: int, micro_batch: ModelPass) -> None:
        """Call before the layer's forward pass, whichever stage has the layer."""
        if self._receives(layer):
            self._receive(micro_batch.received)
        elif self._sends(layer):
            self._stage.send(micro_batch.handed_over.clone())  # a copy: its memory may be taken back before it is sent

    def backward(self, layer: int, micro_batch: ModelPass) -> None:
        """Call before the layer's backward pass, whichever stage has the layer."""
        if self._receives_back(layer):
            self._receive_back(micro_batch.gradient)
        elif self._sends_back(layer):
            self._stage.send_back(micro_batch.gradient.clone())

    def skip_forward(self, layer: int, num_tokens: int) -> None:
        """As `forward`, for a micro-batch of `num_tokens` tokens that has failed on this stage."""
        if self._receives(layer):
            self._receive(self._nothing(num_tokens))
        elif self._sends(layer):
            self._stage.send(self._nothing(num_tokens))

    def skip_backward(self, layer: int, num_tokens: int) -> None:
        if self._receives_back(layer):
            self._receive_back(self._nothing(num_tokens))
        elif self._sends_back(layer):
            self._stage.send_back(self._nothing(num_tokens))

    def of_all_stages(self, norms: Tensor) -> Tensor:
        """norms [N] fp32: of this stage. Returns those of all stages in order, [size * N], the same on each stage."""
        stage, num = self._stage, len(norms)
        if stage.size == 1:
            return norms
        whole = norms.new_zeros(stage.size * num)
        if not is_first(stage):
            self._receive(whole)
        whole[stage.index * num :][:num] = norms
        if not is_last(stage):
            stage.send(whole.clone())
            self._receive_back(whole)
        if not is_first(stage):
            stage.send_back(whole.clone())
        return whole

    def tell_last(self, tensors: tuple[Tensor, ...], layout: ParameterLayout) -> None:
        """Send flat host tensors [layout.num_parameters] to the last stage, which calls `hear`."""
        for tensor in tensors:
            for part in layout.parts(tensor, layout):
                self._stage.tell_last(part)

    def hear(self, into: tuple[Tensor, ...], whole: ParameterLayout, of_stage: list[ParameterLayout]) -> None:
        """On the last stage: receive what the others send by `tell_last`. into: flat host tensors
        [whole.num_parameters].
        of_stage: the layout of each stage."""
        for index, layout in enumerate(of_stage[:-1]):
            for tensor in into:
                for part in whole.parts(tensor, layout):
                    self._stage.hear(index, part)

    def take_waited_s(self) -> float:
        """Seconds spent waiting for other stages since the last call. Waits until that work is computed."""
        waited_s, self._waited_s = self._waited_s, 0.0
        waits, self._waits = self._waits, []
        for began, ended in waits:
            ended.synchronize()
            waited_s += began.elapsed_time(ended) / 1e3
        return waited_s

    def _receives(self, layer: int) -> bool:
        return layer == self._layers.start and not is_first(self._stage)

    def _sends(self, layer: int) -> bool:
        return layer == self._layers.stop

    def _receives_back(self, layer: int) -> bool:
        return layer == self._layers.stop - 1 and not is_last(self._stage)

    def _sends_back(self, layer: int) -> bool:
        return layer == self._layers.start - 1

    def _receive(self, into: Tensor) -> None:
        with self._waiting():
            self._stage.receive(into)

    def _receive_back(self, into: Tensor) -> None:
        with self._waiting():
            self._stage.receive_back(into)

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        if self._device.type == "cpu":
            started_s = time.perf_counter()
            yield
            self._waited_s += time.perf_counter() - started_s
            return
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        began.record()
        yield
        ended.record()
        self._waits.append((began, ended))

    def _nothing(self, num_tokens: int) -> Tensor:
        shape = num_tokens, self._hidden_size
        return torch.full(shape, math.nan, dtype=self._dtype, device=self._device)
