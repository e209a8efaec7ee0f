"""A fine-tuning job's computation as a series of layer steps (FineInfer, section 2.4); it may pause after each.

A *fine-tuning iteration* is one micro-batch: forward of each layer, the loss in parts that take about as long as a
layer, backward of each layer, and a last step, with the optimizer's step if this micro-batch completes it. After an
epoch's last optimizer step, validation examples go forward. Activations are in memory that may be taken away at any
layer step; the micro-batch is then repeated, with bit-identical results.

In a model with pipeline stages, every stage runs the layer steps of the whole model, one after the other. It computes
those of its own layers, for which alone it has A, B and moments; in the others it does nothing, except for exchanges
with its neighbours (stage_exchange.py). The last stage, which has the loss, reports the news, and collects the other
stages' state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from service.core.training import StepReport, TrainingNews
from service.errors import InvalidRequest, TrainingDiverged
from service.finetune.adamw import AdamW
from service.finetune.batch_tensors import num_computed_tokens
from service.finetune.host_copies import host_copies, host_rows, reserve_host_copies
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.layer_graphs import GraphCapture
from service.finetune.lora_parameters import LoraParameters
from service.finetune.packing import MicroBatch, OptimizerStep, TrainingData
from service.finetune.stage_exchange import StageExchange
from service.finetune.token_loss import LossSums
from service.finetune.trainable_model import blocks_of, check_trainable, layouts_of_stages, num_layers
from service.finetune.trained_model import ModelPass, TrainedModel, activation_arena
from service.finetune.trained_model import rows_per_loss_step as rows_of_model
from service.finetune.training_state import ParameterLayout, TrainingState
from service.finetune.training_threads import threads_for
from service.layers.pipeline_stage import is_last, layers_of
from service.models.causal_lm import CausalLM


class _DoneStep(NamedTuple):
    """An optimizer step not reported yet. sums, validation, gradient_norm: scalars on the device. sums: None on stages
    without the output head."""

    number: int
    learning_rate: float
    num_trained: int
    sums: LossSums | None
    gradient_norm: Tensor
    validation: LossSums | None


class _Iteration:
    """The current fine-tuning iteration. left: its layer steps that are left."""

    def __init__(self, layer_steps: Iterator[None], num_layer_steps: int) -> None:
        self._layer_steps = layer_steps
        self._num = self.left = num_layer_steps

    @property
    def num_begun(self) -> int:
        return self._num - self.left

    def advance(self) -> None:
        self.left -= 1
        next(self._layer_steps, None)


class _OnDevice(NamedTuple):
    """What a training has on its device besides the arena."""

    parameters: LoraParameters
    model: TrainedModel
    optimizer: AdamW


class LoraTraining:
    """A `Training` of an adapter of the served model. Engine thread only, except for the constructor and constants.

    Does not use the device before the first `advance`, apart from pinning host memory.
    """

    def __init__(
        self,
        training_id: int,
        model: CausalLM,
        data: TrainingData,
        hyperparameters: Hyperparameters,
        state: TrainingState,
        *,
        validation: Sequence[MicroBatch] = (),
        steps_per_checkpoint: int,
        rows_per_loss_step: int | None = None,
        graphs: GraphCapture | None = None,
        moments_on_host: bool = False,
        tells_news: bool = True,
    ) -> None:
        """model: the served one, with its plain weights kept. state: where to start or resume; its layout, which is of
        the whole model, says what is trained. validation: packed like the data. steps_per_checkpoint: a state is
        reported so often, and after each epoch's last step. rows_per_loss_step: see `TrainedModel`; None: compute it,
        for a model that has its head. graphs: see `TrainedModel`. moments_on_host: see `AdamW`. tells_news: False on
        all ranks but the first, since nobody reads their news. Raises InvalidRequest if the model cannot be trained."""
        self.training_id = training_id
        self._model = check_trainable(model)
        self._data = data
        self._hyperparameters = hyperparameters
        self._validation = validation
        self._steps_per_checkpoint = steps_per_checkpoint
        self._graphs = graphs
        self._moments_on_host = moments_on_host
        self._tells_news = tells_news
        self._own = layouts_of_stages(self._model, state.layout)[self._model.stage.index]
        self._begin = state if tells_news else state.part(self._own)
        self._num_tokens = hyperparameters.micro_batch_tokens
        self._num_layers = num_layers(self._model)
        self._layers = layers_of(self._model.stage, self._num_layers)
        self.num_arena_bytes = activation_arena(self._model, state.layout).num_bytes(self._num_tokens)
        self._rows_per_loss_step = rows_per_loss_step or rows_of_model(self._model, self._num_tokens)
        self._num_loss_steps = -(-self._num_tokens // self._rows_per_loss_step)
        self.layer_steps_per_iteration = 2 * self._num_layers + self._num_loss_steps + 1

        weight = blocks_of(self._model)[0].attention_norm.weight
        self._width, self._dtype, self._device = weight.numel(), weight.dtype, weight.device
        if tells_news:
            reserve_host_copies(3, state.layout.num_parameters, self._device)
        self._exchange = StageExchange(self._model.stage, self._layers, self._width, self._dtype, self._device)
        self._gathered: TrainingState | None = None

        self._there: _OnDevice | None = None
        self._memory: Tensor | None = None
        self._iteration: _Iteration | None = None

        self._step = state.step
        self._num_trained_tokens = state.num_trained_tokens
        self._current = self._data.step(self._step) if self._step < data.num_steps else None
        self._micro_batch = 0
        self._accumulated_from = self._num_layers
        self._sums: LossSums | None = None
        self._num_validated: int | None = None  # micro-batches validated; None unless validation is under way
        self._untold: list[_DoneStep] = []
        self._is_checkpoint_due = False
        self._is_resumed_at_end = self._current is None

    @property
    def layer_steps_left(self) -> int:
        return self._iteration.left if self._iteration is not None else self._num_layer_steps_of_next

    @property
    def is_over(self) -> bool:
        return self._is_computed and not self._untold and not self._is_checkpoint_due

    @property
    def _is_computed(self) -> bool:
        return self._current is None and self._num_validated is None and not self._is_resumed_at_end

    @property
    def _num_layer_steps_of_next(self) -> int:
        if self._num_validated is not None:
            return self._num_layers + self._num_loss_steps
        return int(self._is_resumed_at_end) if self._current is None else self.layer_steps_per_iteration

    def use_memory(self, memory: Tensor | None) -> None:
        assert memory is None or memory.nbytes >= self.num_arena_bytes
        self._memory = memory
        self._iteration = None

    @torch.inference_mode()
    def advance(self, num_layer_steps: int) -> int:
        if not num_layer_steps:
            self._gather()
            return 0
        with threads_for(self._num_tokens, self._width, self._device):
            return self._advance(num_layer_steps)

    def _advance(self, num_layer_steps: int) -> int:
        done = 0
        while done < num_layer_steps and not self._is_computed:
            if self._iteration is None:
                self._iteration = _Iteration(self._layer_steps(), self._num_layer_steps_of_next)
            iteration = self._iteration
            try:
                iteration.advance()
            except Exception as fault:
                if not isinstance(fault, InvalidRequest):  # that one is raised on every stage at the same step
                    self._skip(iteration, num_layer_steps - done - 1)
                raise
            if iteration.left == 0:
                self._iteration = None
            done += 1
        return done

    @torch.inference_mode()
    def take_news(self) -> TrainingNews:
        if not self._tells_news:
            del self._untold[: len(self._untold) - (self._num_validated is not None)]
            self._is_checkpoint_due = False
            return TrainingNews()
        reports = []
        while self._untold and not (self._num_validated is not None and len(self._untold) == 1):
            reports.append(self._report(self._untold.pop(0)))
        state = None
        if self._is_checkpoint_due and not self._untold:
            state, self._is_checkpoint_due = self.state(), False
            self._gathered = None
        return TrainingNews(tuple(reports), state)

    @torch.inference_mode()
    def state(self) -> TrainingState:
        """With several stages: the state gathered after the last optimizer step (see `Training.advance` with 0)."""
        if self._there is None:
            return self._begin
        if self._model.stage.size == 1:
            return self._state(self._own, self._own_tensors())
        assert self._gathered is not None and self._gathered.step == self._step
        return self._gathered

    def take_waited_s(self) -> float:
        return self._exchange.take_waited_s()

    def _own_tensors(self) -> tuple[Tensor, ...]:
        """Host copies of this stage's tensors."""
        there = self._there
        if there is None:
            return self._begin.part(self._own).tensors
        return host_copies(
            (there.parameters.values, there.optimizer.first_moments, there.optimizer.second_moments), self._device
        )

    def _state(self, layout: ParameterLayout, tensors: tuple[Tensor, ...]) -> TrainingState:
        parameters, first_moments, second_moments = tensors
        seed, num_trained = self._begin.seed, self._num_trained_tokens
        return TrainingState(layout, parameters, first_moments, second_moments, self._step, seed, num_trained)

    def _gather(self) -> None:
        """Collect the state of all stages on the last one: the first rank of each other stage sends (all ranks of a
        stage have the same), the first rank of the last stage receives."""
        model, own = self._model, self._own_tensors()
        if model.stage.size == 1 or model.parallel.rank:
            return
        if not is_last(model.stage):
            self._exchange.tell_last(own, self._own)
            return
        whole = self._begin.layout
        tensors = host_rows(len(own), whole.num_parameters, self._device)
        for tensor, mine in zip(tensors, own, strict=True):
            for place, values in zip(whole.parts(tensor, self._own), self._own.parts(mine, self._own), strict=True):
                place.copy_(values)
        self._exchange.hear(tensors, whole, layouts_of_stages(model, whole))
        self._gathered = self._state(whole, tensors)

    def _layer_steps(self) -> Iterator[None]:
        """The layer steps of the next fine-tuning iteration. Only its last one changes state that outlives the
        iteration, apart from the gradients of A and B."""
        if self._is_resumed_at_end:
            yield from self._end()
        elif self._num_validated is not None:
            yield from self._validate(self._on_device())
        else:
            assert self._current is not None
            yield from self._train(self._on_device(), self._current)

    def _end(self) -> Iterator[None]:
        """A state resumed after its last step: nothing is left to compute, but the end must be reported."""
        self._is_resumed_at_end, self._is_checkpoint_due = False, True
        yield

    def _train(self, there: _OnDevice, step: OptimizerStep) -> Iterator[None]:
        micro_batch = there.model.begin(self._batch, self._own_or_lent_memory())
        for layer in range(self._num_layers):
            self._forward(micro_batch, layer)
            yield
        for part in range(self._num_loss_steps):
            self._loss(micro_batch, part, 1 / step.num_trained)
            yield
        for layer in reversed(range(self._num_layers)):
            self._exchange.backward(layer, micro_batch)
            if layer in self._layers:
                # Layers from `_accumulated_from` on added to the gradients before the micro-batch was interrupted.
                accumulates = layer < self._accumulated_from
                micro_batch.backward(layer - self._layers.start, accumulates=accumulates)
            self._accumulated_from = min(layer, self._accumulated_from)
            yield
        self._sums = _added(self._sums, micro_batch.sums)
        self._accumulated_from = self._num_layers
        self._micro_batch += 1
        if self._micro_batch == len(step.micro_batches):
            self._optimize(there, step)
        yield

    @property
    def _batch(self) -> MicroBatch:
        """The current micro-batch."""
        if self._num_validated is not None:
            return self._validation[self._num_validated]
        assert self._current is not None
        return self._current.micro_batches[self._micro_batch]

    def _forward(self, micro_batch: ModelPass, layer: int) -> None:
        self._exchange.forward(layer, micro_batch)
        if layer in self._layers:
            micro_batch.forward(layer - self._layers.start)

    def _loss(self, micro_batch: ModelPass, part: int, gradient_scale: float | None) -> None:
        if is_last(self._model.stage):
            micro_batch.loss(part, gradient_scale)

    def _skip(self, iteration: _Iteration, num_layer_steps: int) -> None:
        """A layer step has failed on this stage. For the rest of this `advance`, which is the training's last one, send
        NaN wherever other stages wait for something."""
        first, num = iteration.num_begun, min(num_layer_steps, iteration.left)
        if self._model.stage.size == 1 or not num:
            return
        num_tokens = num_computed_tokens(self._batch, in_few_sizes=self._graphs is not None)
        for step in range(first, first + num):
            behind_loss = step - self._num_layers - self._num_loss_steps
            if step < self._num_layers:
                self._exchange.skip_forward(step, num_tokens)
            elif 0 <= behind_loss < self._num_layers:
                self._exchange.skip_backward(self._num_layers - 1 - behind_loss, num_tokens)
            elif behind_loss == self._num_layers:
                self._skip_end()

    def _skip_end(self) -> None:
        assert self._current is not None
        if self._micro_batch + 1 < len(self._current.micro_batches):
            return
        self._exchange.of_all_stages(torch.full((2 * len(self._own.sites),), math.nan, device=self._device))
        if self._is_checkpoint(self._step + 1):
            self._gather()

    def _optimize(self, there: _OnDevice, step: OptimizerStep) -> None:
        number = self._step + 1
        gradient = there.parameters.gradient
        if self._model.parallel.size > 1:  # each rank has a part of the gradient's sum
            gradient.copy_(self._model.parallel.all_reduce(gradient.clone()))
        learning_rate = self._hyperparameters.learning_rate_at(number, self._data.num_steps)
        norm = torch.linalg.vector_norm(self._exchange.of_all_stages(there.parameters.gradient_norms()))
        there.optimizer.step(number, learning_rate, norm)
        self._untold.append(_DoneStep(number, learning_rate, step.num_trained, self._sums, norm, None))
        self._num_trained_tokens += step.num_trained
        self._step, self._micro_batch, self._sums = number, 0, None
        self._current = self._data.step(number) if number < self._data.num_steps else None
        if self._is_checkpoint(number):
            self._is_checkpoint_due = True
            if self._model.stage.size > 1:
                self._gather()
        if self._is_epochs_end(number) and self._validation:
            self._num_validated = 0

    def _is_checkpoint(self, number: int) -> bool:
        """Whether the state is reported after this optimizer step."""
        return self._is_epochs_end(number) or number % self._steps_per_checkpoint == 0

    def _is_epochs_end(self, number: int) -> bool:
        return number % self._data.num_steps_per_epoch == 0

    def _validate(self, there: _OnDevice) -> Iterator[None]:
        micro_batch = there.model.begin(self._batch, self._own_or_lent_memory())
        for layer in range(self._num_layers):
            self._forward(micro_batch, layer)
            yield
        for part in range(self._num_loss_steps):
            self._loss(micro_batch, part, None)
            if part < self._num_loss_steps - 1:
                yield
        done = self._untold[-1]
        self._untold[-1] = done._replace(validation=_added(done.validation, micro_batch.sums))
        assert self._num_validated is not None
        self._num_validated += 1
        if self._num_validated == len(self._validation):
            self._num_validated = None
        yield

    def _on_device(self) -> _OnDevice:
        if self._there is None:
            begin = self._begin.part(self._own)
            parameters = LoraParameters(begin, self._dtype, self._device)
            scale = self._hyperparameters.alpha / self._hyperparameters.rank
            self._there = _OnDevice(
                parameters,
                TrainedModel(self._model, parameters, scale, self._rows_per_loss_step, self._graphs),
                AdamW(parameters, self._hyperparameters, begin, moments_on_host=self._moments_on_host),
            )
        return self._there

    def _own_or_lent_memory(self) -> Tensor:
        if self._memory is None:
            self._memory = torch.empty(self.num_arena_bytes, dtype=torch.uint8, device=self._device)
        return self._memory

    def _report(self, done: _DoneStep) -> StepReport:
        """Waits for the device. Raises TrainingDiverged."""
        assert done.sums is not None, "who tells has the head"
        losses, hits, norm = (float(number) for number in (*done.sums, done.gradient_norm))
        if not (math.isfinite(losses) and math.isfinite(norm)):
            raise TrainingDiverged(
                f"In step {done.number} the loss is {losses / done.num_trained:g} and the gradient's norm {norm:g}; "
                "a lower learning rate may help."
            )
        valid_loss = valid_accuracy = None
        if done.validation is not None:
            num_valid = sum(batch.num_trained for batch in self._validation)
            valid_loss, valid_accuracy = (float(total) / num_valid for total in done.validation)
        return StepReport(
            step=done.number,
            loss=losses / done.num_trained,
            token_accuracy=hits / done.num_trained,
            num_trained_tokens=done.num_trained,
            learning_rate=done.learning_rate,
            gradient_norm=norm,
            valid_loss=valid_loss,
            valid_accuracy=valid_accuracy,
        )


def _added(sums: LossSums | None, more: LossSums | None) -> LossSums | None:
    """Sum of both; None without the output head."""
    return more if sums is None or more is None else sums.add(more)
