"""A served model with trained adapters: forward and backward of a micro-batch, one layer at a time."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from kernels.packed_attention import has_flash
from kernels.rms_norm import rms_norm
from kernels.rms_norm_backward import rms_norm_backward
from service.core.training import MOST_GRAPH_TOKENS
from service.errors import InvalidRequest
from service.finetune.activation_arena import ActivationArena, Activations
from service.finetune.batch_tensors import BatchTensors, batch_tensors
from service.finetune.layer_graphs import (
    CapturedSteps,
    CudaGraphCapture,
    GraphCapture,
    LaunchedSteps,
    LayerSteps,
    NoGraphs,
    RecentPlaces,
)
from service.finetune.lora_parameters import LoraParameters
from service.finetune.packing import MicroBatch
from service.finetune.token_loss import LossSums, VocabWeight, token_loss
from service.finetune.trainable_model import block_names, blocks_of
from service.finetune.trained_block import TrainedBlock, layer_shape
from service.finetune.training_state import ParameterLayout
from service.layers.pipeline_stage import is_first
from service.models.causal_lm import CausalLM
from service.models.llama import Llama


class TrainedModel:
    """In a model with pipeline stages: this stage's layers. scale: factor on the adapters' products. The model's
    weights are used in place.

    rows_per_loss_step: trained tokens whose logits are computed in one layer step. graphs: captures graphs for small
    micro-batches, which are padded to few sizes for it; None: neither.
    """

    def __init__(
        self,
        model: Llama,
        parameters: LoraParameters,
        scale: float,
        rows_per_loss_step: int,
        graphs: GraphCapture | None = None,
    ) -> None:
        self._graphs = graphs
        self._places: RecentPlaces[_GraphPlace] = RecentPlaces(_MOST_PLACES)
        self.model = model
        self.rows_per_loss_step = rows_per_loss_step
        self.blocks = [
            TrainedBlock(block, name, parameters, scale, model.parallel)
            for block, name in zip(blocks_of(model), block_names(model), strict=True)
        ]
        self.arena = activation_arena(model, parameters.layout)

    def begin(self, batch: MicroBatch, memory: Tensor) -> ModelPass:
        """memory: flat uint8 for the activations, at least `arena.num_bytes` of the micro-batch's tokens. Raises
        InvalidRequest for a token id that the model does not have, or a position beyond its tables."""
        vocab_size, num_positions = self.model.vocab_size, self.model.rotary.num_positions
        # Checked on the host, since on a GPU such an index would end the process.
        if batch.token_ids.max() >= vocab_size or batch.token_ids.min() < 0:
            raise _unfit(f"has a token id outside the model's vocabulary of {vocab_size}")
        if batch.positions.max() >= num_positions:
            raise _unfit(f"has more than {num_positions} tokens, which is the model's limit")
        graphs, rotary = self._graphs, self.model.rotary
        tensors = batch_tensors(batch, rotary, memory.device, in_few_sizes=graphs is not None)
        if graphs is None or tensors.num_tokens > MOST_GRAPH_TOKENS:
            return ModelPass(self, tensors, self.arena.activations(memory, tensors.num_tokens), LaunchedSteps())

        def new_place() -> _GraphPlace:
            return _GraphPlace(tensors, self.arena.activations(memory, tensors.num_tokens), CapturedSteps(graphs))

        place = self._places.at((memory.data_ptr(), tensors.size), new_place)
        return ModelPass(self, place.batch.copy_from(tensors), place.kept, place.steps)


_MOST_PLACES = 8
"""Limit of (batch size, arena) pairs with graphs. The graphs of one pair take about ten megabytes."""


class _GraphPlace(NamedTuple):
    """The memory that graphs read and write, and the graphs."""

    batch: BatchTensors
    kept: Activations
    steps: CapturedSteps


class ModelPass:
    """One micro-batch: `forward` of each layer in order, then each part of `loss`, then `backward` of each layer in
    reverse order. Does not wait for the device. With pipeline stages, a pass covers this stage's layers: `received`
    must be filled before the first layer's forward pass, and `gradient` before the last layer's backward pass, except
    on the last stage; only the last stage has a loss.

    sums: over the parts of the loss so far; None before the first.
    """

    def __init__(self, trained: TrainedModel, batch: BatchTensors, kept: Activations, steps: LayerSteps) -> None:
        self._trained = trained
        self._batch = batch
        self._kept = kept
        self._steps = steps
        self.sums: LossSums | None = None

    @property
    def received(self) -> Tensor:
        """[T, hidden_size]: input of this stage's first layer, to be received from the previous stage."""
        return self._kept.layers[0].stream

    @property
    def handed_over(self) -> Tensor:
        """[T, hidden_size]: output of this stage's last layer."""
        return self._kept.stream

    @property
    def gradient(self) -> Tensor:
        """[T, hidden_size]: gradient of the input of the layer whose backward pass ran last; before the first one, of
        the last layer's output."""
        return self._kept.gradient

    def forward(self, layer: int) -> None:
        self._steps.run(("forward", layer), lambda: self._launch_forward(layer))

    def loss(self, part: int, gradient_scale: float | None) -> None:
        """part: index of the chunk of `rows_per_loss_step` trained tokens; adds to `sums`. gradient_scale: the backward
        pass is for the sum of losses times this; None: there will be no backward pass."""
        num_rows, batch, model = self._trained.rows_per_loss_step, self._batch, self._trained.model
        gradient = self._kept.gradient
        if part == 0 and gradient_scale is not None:
            gradient.zero_()
        rows = batch.trained_rows[part * num_rows : (part + 1) * num_rows]
        if not len(rows):
            return
        stream, norm = self._kept.stream.index_select(0, rows), model.norm
        normed, targets = rms_norm(stream, norm.weight, norm.eps), batch.targets[part * num_rows :][: len(rows)]
        head, parallel = model.head, model.parallel
        weight = VocabWeight(head.plain_weight, head.ids, head.vocab_size)
        sums, normed_grad = token_loss(normed, targets, weight, gradient_scale, parallel)
        self.sums = sums if self.sums is None else self.sums.add(sums)
        if normed_grad is not None:
            _, stream_grad = rms_norm_backward(normed_grad, stream, norm.weight, norm.eps)
            gradient.index_copy_(0, rows, stream_grad)

    def backward(self, layer: int, *, accumulates: bool) -> None:
        """accumulates: add to the gradients of A and B."""
        step = ("backward" if accumulates else "backward without gradients", layer)
        self._steps.run(step, lambda: self._launch_backward(layer, accumulates))

    def _launch_forward(self, layer: int) -> None:
        layers = self._kept.layers
        if layer == 0 and is_first(self._trained.model.stage):
            layers[0].stream.copy_(self._trained.model.embedding(self._batch.token_ids))
        following = layers[layer + 1].stream if layer + 1 < len(layers) else self._kept.stream
        self._trained.blocks[layer].forward(layers[layer], following, self._batch)

    def _launch_backward(self, layer: int, accumulates: bool) -> None:
        kept, gradient = self._kept.layers[layer], self._kept.gradient
        block, is_lowest = self._trained.blocks[layer], layer == 0 and is_first(self._trained.model.stage)
        block.backward(kept, gradient, self._batch, accumulates=accumulates, is_first=is_lowest)


def rows_per_loss_step(model: Llama, num_tokens: int) -> int:
    """How many rows take about as long through the output head as all `num_tokens` of a micro-batch through a layer. In
    small models the head is much larger than a layer. For a model (stage) that has its head."""
    layer_size = sum(weight.numel() for weight in blocks_of(model)[0].parameters())
    return max(1, min(num_tokens, num_tokens * layer_size // model.head.plain_weight.numel()))


def graph_capture(model: CausalLM, *, enforce_eager: bool = False) -> GraphCapture | None:
    """Graph capture for trainings of this model; None if its layer steps cannot be captured. With enforce_eager, or if
    ranks exchange sums: no graphs, but the same micro-batch sizes, so that a job resumes with bit-identical results."""
    if not isinstance(model, Llama):
        return None
    first = blocks_of(model)[0]
    weight = first.attention_norm.weight
    if not has_flash(weight, first.attention.head_dim):
        return None
    return NoGraphs() if enforce_eager or model.parallel.size > 1 else CudaGraphCapture(weight.device)


def activation_arena(model: Llama, layout: ParameterLayout) -> ActivationArena:
    names = block_names(model)
    shapes = [layer_shape(block, name, layout) for block, name in zip(blocks_of(model), names, strict=True)]
    return ActivationArena(shapes, model.dtype)


def _unfit(reason: str) -> InvalidRequest:
    return InvalidRequest(f"an example {reason}", param="training_file")
