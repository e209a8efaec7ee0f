"""A fine-tuning job's computation as a series of layer steps (FineInfer, section 2.4), which may stop after each.

A *fine-tuning iteration* is one micro-batch: forward of each layer, the loss in parts that take about as long, backward
of each layer, and the end, where the optimizer takes its step if the micro-batch was the step's last. After an epoch's
last step the validation examples go forward. Activations live in memory that may be taken away at any layer step: the
micro-batch is then done again, to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from service.core.training import StepReport, TrainingNews
from service.errors import TrainingDiverged
from service.finetune.adamw import AdamW
from service.finetune.host_copies import host_copies, reserve_host_copies
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.layer_graphs import GraphCapture
from service.finetune.lora_parameters import LoraParameters
from service.finetune.packing import MicroBatch, OptimizerStep, TrainingData
from service.finetune.token_loss import LossSums
from service.finetune.trainable_model import check_trainable
from service.finetune.trained_model import TrainedModel, activation_arena, rows_per_loss_step
from service.finetune.training_state import TrainingState
from service.finetune.training_threads import threads_for
from service.models.causal_lm import CausalLM


class _DoneStep(NamedTuple):
    """An optimizer step of which nothing was told yet. sums, validation, gradient_norm: numbers on the device."""

    number: int
    learning_rate: float
    num_trained: int
    sums: LossSums
    gradient_norm: Tensor
    validation: LossSums | None


class _Iteration:
    """A fine-tuning iteration under way. left: of its layer steps."""

    def __init__(self, layer_steps: Iterator[None], num_layer_steps: int) -> None:
        self._layer_steps = layer_steps
        self.left = num_layer_steps

    def advance(self) -> None:
        next(self._layer_steps, None)
        self.left -= 1


class _OnDevice(NamedTuple):
    """What a training has on its device beside the arena."""

    parameters: LoraParameters
    model: TrainedModel
    optimizer: AdamW


class LoraTraining:
    """A `Training` of a served model's adapter. Engine thread only, but for the constructor and what never changes.

    The device is touched by no call before `advance`.
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
        graphs: GraphCapture | None = None,
        moments_on_host: bool = False,
        tells_news: bool = True,
    ) -> None:
        """model: the one that serves, its plain weights kept. state: where to begin, or to go on; its layout says what
        is trained. validation: packed as the data is. steps_per_checkpoint: a state is told so often, and after the
        last step of each epoch. graphs: see `TrainedModel`. moments_on_host: see `AdamW`. tells_news: False on other
        ranks than the first, where nobody asks. Raises InvalidRequest if such a model cannot be trained."""
        self.training_id = training_id
        self._model = check_trainable(model)
        self._data = data
        self._hyperparameters = hyperparameters
        self._validation = validation
        self._steps_per_checkpoint = steps_per_checkpoint
        self._graphs = graphs
        self._moments_on_host = moments_on_host
        self._tells_news = tells_news
        self._begin = state
        self._num_tokens = hyperparameters.micro_batch_tokens
        self._num_layers = len(self._model.blocks)
        self.num_arena_bytes = activation_arena(self._model, state.layout).num_bytes(self._num_tokens)
        self._rows_per_loss_step = rows_per_loss_step(self._model, self._num_tokens)
        self._num_loss_steps = -(-self._num_tokens // self._rows_per_loss_step)
        self.layer_steps_per_iteration = 2 * self._num_layers + self._num_loss_steps + 1

        if tells_news:
            reserve_host_copies(3, state.layout.num_parameters, self._model.norm.weight.device)

        self._there: _OnDevice | None = None
        self._memory: Tensor | None = None
        self._iteration: _Iteration | None = None

        self._step = state.step
        self._num_trained_tokens = state.num_trained_tokens
        self._current = self._data.step(self._step) if self._step < data.num_steps else None
        self._micro_batch = 0
        self._accumulated_from = self._num_layers
        self._sums: LossSums | None = None
        self._num_validated: int | None = None  # micro-batches, while validation is under way
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
        norm = self._model.norm.weight
        with threads_for(self._num_tokens, norm.numel(), norm.device):
            return self._advance(num_layer_steps)

    def _advance(self, num_layer_steps: int) -> int:
        done = 0
        while done < num_layer_steps and not self._is_computed:
            if self._iteration is None:
                self._iteration = _Iteration(self._layer_steps(), self._num_layer_steps_of_next)
            iteration = self._iteration
            iteration.advance()
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
        return TrainingNews(tuple(reports), state)

    @torch.inference_mode()
    def state(self) -> TrainingState:
        there, begin = self._there, self._begin
        if there is None:
            return begin
        of_device = there.parameters.values, there.optimizer.first_moments, there.optimizer.second_moments
        parameters, first_moments, second_moments = host_copies(of_device, there.parameters.values.device)
        return TrainingState(
            layout=begin.layout,
            parameters=parameters,
            first_moments=first_moments,
            second_moments=second_moments,
            step=self._step,
            seed=begin.seed,
            num_trained_tokens=self._num_trained_tokens,
        )

    def _layer_steps(self) -> Iterator[None]:
        """Of the next fine-tuning iteration; what it leaves behind is changed in its last layer step alone, but for the
        gradients of A and B."""
        if self._is_resumed_at_end:
            return self._end()
        there = self._on_device()
        if self._num_validated is not None:
            return self._validate(there, self._validation[self._num_validated])
        assert self._current is not None
        return self._train(there, self._current)

    def _end(self) -> Iterator[None]:
        """There is nothing to compute; but that it is the end is to be told."""
        self._is_resumed_at_end, self._is_checkpoint_due = False, True
        yield

    def _train(self, there: _OnDevice, step: OptimizerStep) -> Iterator[None]:
        micro_batch = there.model.begin(step.micro_batches[self._micro_batch], self._own_or_lent_memory())
        for layer in range(self._num_layers):
            micro_batch.forward(layer)
            yield
        for part in range(self._num_loss_steps):
            micro_batch.loss(part, 1 / step.num_trained)
            yield
        for layer in reversed(range(self._num_layers)):
            # Layers above were done before the memory was taken away: their part is in the gradients already.
            micro_batch.backward(layer, accumulates=layer < self._accumulated_from)
            self._accumulated_from = min(layer, self._accumulated_from)
            yield
        assert micro_batch.sums is not None
        self._sums = micro_batch.sums if self._sums is None else self._sums.add(micro_batch.sums)
        self._accumulated_from = self._num_layers
        self._micro_batch += 1
        if self._micro_batch == len(step.micro_batches):
            self._optimize(there, step)
        yield

    def _optimize(self, there: _OnDevice, step: OptimizerStep) -> None:
        assert self._sums is not None
        number = self._step + 1
        gradient = there.parameters.gradient
        if self._model.parallel.size > 1:  # of which each rank has some
            gradient.copy_(self._model.parallel.all_reduce(gradient.clone()))
        learning_rate = self._hyperparameters.learning_rate_at(number, self._data.num_steps)
        norm = there.optimizer.step(number, learning_rate)
        self._untold.append(_DoneStep(number, learning_rate, step.num_trained, self._sums, norm, None))
        self._num_trained_tokens += step.num_trained
        self._step, self._micro_batch, self._sums = number, 0, None
        self._current = self._data.step(number) if number < self._data.num_steps else None
        is_epochs_end = number % self._data.num_steps_per_epoch == 0
        self._is_checkpoint_due |= is_epochs_end or number % self._steps_per_checkpoint == 0
        if is_epochs_end and self._validation:
            self._num_validated = 0

    def _validate(self, there: _OnDevice, batch: MicroBatch) -> Iterator[None]:
        micro_batch = there.model.begin(batch, self._own_or_lent_memory())
        for layer in range(self._num_layers):
            micro_batch.forward(layer)
            yield
        for part in range(self._num_loss_steps):
            micro_batch.loss(part, None)
            if part < self._num_loss_steps - 1:
                yield
        done, sums = self._untold[-1], micro_batch.sums
        assert sums is not None
        self._untold[-1] = done._replace(validation=sums if done.validation is None else done.validation.add(sums))
        assert self._num_validated is not None
        self._num_validated += 1
        if self._num_validated == len(self._validation):
            self._num_validated = None
        yield

    def _on_device(self) -> _OnDevice:
        if self._there is None:
            norm = self._model.norm.weight
            parameters = LoraParameters(self._begin, norm.dtype, norm.device)
            scale = self._hyperparameters.alpha / self._hyperparameters.rank
            self._there = _OnDevice(
                parameters,
                TrainedModel(self._model, parameters, scale, self._rows_per_loss_step, self._graphs),
                AdamW(parameters, self._hyperparameters, self._begin, moments_on_host=self._moments_on_host),
            )
        return self._there

    def _own_or_lent_memory(self) -> Tensor:
        if self._memory is None:
            self._memory = torch.empty(self.num_arena_bytes, dtype=torch.uint8, device=self._model.norm.weight.device)
        return self._memory

    def _report(self, done: _DoneStep) -> StepReport:
        """Waits for the device. Raises TrainingDiverged."""
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
