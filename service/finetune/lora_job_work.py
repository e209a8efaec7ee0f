"""The slow work of a job, for a LoRA adapter of the served model: read files, resume, write results."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from service.core.training import Training
from service.errors import AdapterError
from service.finetune.auto_hyperparameters import USUAL_RANK, DataSize, max_length, resolved
from service.finetune.checkpoint import read_checkpoint, write_checkpoint
from service.finetune.dataset import Dataset, Example, read_dataset
from service.finetune.dataset_line import DatasetError
from service.finetune.export import export_adapter
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.job import Job, ValidatedData
from service.finetune.job_faults import JobFault
from service.finetune.lora_parameters import first_state, state_of_adapter
from service.finetune.reading_pace import ReadingPace
from service.finetune.served_base import ServedBase
from service.finetune.shared_training import TrainingTask
from service.finetune.trainable_model import check_trainable, parameter_layout
from service.finetune.trained_model import graph_capture, rows_per_loss_step
from service.finetune.training_run import StateOfStep
from service.finetune.training_state import TrainingState
from service.finetune.training_text import ModelText
from service.lora.adapter_config import read_adapter_config
from service.lora.adapter_folder import read_adapter
from service.models.causal_lm import CausalLM

Check = Callable[[], None]

_LEAST_STEPS_A_CHECKPOINT, _MOST_CHECKPOINTS, _MOST_BYTES_A_STEP = 10, 50, 5_000_000
"""Limits on checkpoints within epochs: one may take hundreds of megabytes, so bytes per step are bounded."""
_BYTES_A_PARAMETER = 12


class LoraJobWork:
    """A `JobWork`. Any thread.

    model: the served model, with its plain weights kept. text: its tokenizer and template. find_adapter: folder of the
    adapter served under a name. enforce_eager: no CUDA graphs. moments_on_host: see `AdamW`. share: makes the other
    ranks of a divided model prepare the same training. is_serving: whether requests run; files are then read slowly.
    """

    def __init__(
        self,
        model: CausalLM,
        text: ModelText,
        base: ServedBase,
        find_adapter: Callable[[str], Path | None],
        *,
        enforce_eager: bool = False,
        moments_on_host: bool = False,
        share: Callable[[Training, TrainingTask], None] | None = None,
        is_serving: Callable[[], bool] = lambda: False,
    ) -> None:
        self._is_serving = is_serving
        self._share = share
        self._moments_on_host = moments_on_host
        self._model = model
        self._text = text
        self._base = base
        self._find_adapter = find_adapter
        self._graphs = graph_capture(model, enforce_eager=enforce_eager)
        self._ids = itertools.count(1)

    def validate(self, job: Job, training_file: Path, validation_file: Path | None, check: Check) -> ValidatedData:
        most = max_length(job.spec, self._base)
        read = self._read(training_file, validation_file, most, check)
        examples, validation = (data.examples for data in read)
        num_tokens = sum(len(example.token_ids) for example in examples)
        longest = max(len(example.token_ids) for example in (*examples, *validation))
        source = self._source(job)
        spec = job.spec if source is None else replace(job.spec, rank=job.spec.rank or self._rank_of(source))
        hyperparameters = resolved(spec, self._base, DataSize(len(examples), num_tokens, longest))
        return ValidatedData(
            hyperparameters,
            len(examples),
            num_tokens,
            _digest(examples, validation),
            num_truncated=sum(data.num_truncated for data in read),
            num_left_out=sum(data.num_left_out for data in read),
        )

    def prepare(
        self, job: Job, training_file: Path, validation_file: Path | None, checkpoint: Path, check: Check
    ) -> Training:
        assert job.data is not None
        hyperparameters = job.data.hyperparameters
        read = self._read(training_file, validation_file, hyperparameters.max_length, check)
        examples, validation = (data.examples for data in read)
        if _digest(examples, validation) != job.data.data_digest:
            raise JobFault("data_changed", "The files, or how the model reads them, have changed.", "training_file")
        state = self._state(job, hyperparameters, checkpoint)
        num_steps = hyperparameters.num_steps(len(examples))
        task = TrainingTask(
            next(self._ids),
            hyperparameters,
            state,
            examples,
            validation,
            steps_per_checkpoint(num_steps, state.layout.num_parameters),
            rows_per_loss_step(check_trainable(self._model), hyperparameters.micro_batch_tokens),
            self._moments_on_host,
        )
        training = task.training(self._model, self._graphs)
        if self._share is not None:
            self._share(training, task)
        return training

    def save(self, job: Job, state: StateOfStep, checkpoint: Path) -> None:
        assert isinstance(state, TrainingState)
        write_checkpoint(checkpoint, state, _belongs_to(job))

    def export(self, job: Job, state: StateOfStep, folder: Path) -> None:
        assert job.data is not None and isinstance(state, TrainingState)
        export_adapter(folder, state, job.data.hyperparameters.alpha, self._base.name)

    def _read(
        self, training_file: Path, validation_file: Path | None, most_tokens: int, check: Check
    ) -> tuple[Dataset, Dataset]:
        """Datasets of both files; the second is empty without a validation file."""
        files = [("training_file", training_file)]
        if validation_file is not None:
            files.append(("validation_file", validation_file))
        found: list[Dataset] = []
        pace = ReadingPace(self._is_serving, check)
        for param, path in files:
            try:
                found.append(read_dataset(path, self._text, most_tokens, pace))
            except DatasetError as fault:
                raise JobFault(f"invalid_{param}", str(fault), param) from fault
        return found[0], found[1] if len(found) > 1 else Dataset((), 0, 0)

    def _state(self, job: Job, hyperparameters: Hyperparameters, checkpoint: Path) -> TrainingState:
        """The initial state: of the checkpoint, of the adapter to continue from, or a new one."""
        layout = parameter_layout(self._model, hyperparameters.targets, hyperparameters.rank)
        if checkpoint.exists():
            return read_checkpoint(checkpoint, layout, _belongs_to(job))
        source = self._source(job)
        if source is None:
            return first_state(layout, hyperparameters.seed)
        try:
            weights = read_adapter(source, layout.sites, self._base.max_rank, torch.float32)
            scale = hyperparameters.alpha / hyperparameters.rank
            return state_of_adapter(layout, weights, scale, hyperparameters.seed)
        except (AdapterError, ValueError) as fault:
            raise JobFault("invalid_model", f"The job cannot continue from this adapter: {fault}", "model") from fault

    def _source(self, job: Job) -> Path | None:
        """Folder of the adapter to continue from; None: start from the base model."""
        if job.spec.model in self._base.names:
            return None
        folder = self._find_adapter(job.spec.model)
        if folder is None:
            raise JobFault("model_not_found", "The model to continue from is no longer served.", "model")
        return folder

    def _rank_of(self, source: Path) -> int:
        """The adapter's rank, or the usual rank if that is higher."""
        try:
            rank = read_adapter_config(source, max_patterns=len(self._base.linears)).rank
        except AdapterError as fault:
            raise JobFault("invalid_model", f"The job cannot continue from this adapter: {fault}", "model") from fault
        return max(rank, min(USUAL_RANK, self._base.max_rank))


def steps_per_checkpoint(num_steps: int, num_parameters: int) -> int:
    by_bytes = num_parameters * _BYTES_A_PARAMETER // _MOST_BYTES_A_STEP
    return max(_LEAST_STEPS_A_CHECKPOINT, num_steps // _MOST_CHECKPOINTS, by_bytes)


def _belongs_to(job: Job) -> str:
    """Identifies what a checkpoint belongs to."""
    assert job.data is not None
    return f"{job.job_id} {job.base_weights} {job.data.data_digest} {job.data.hyperparameters}"


def _digest(*lists: Sequence[Example]) -> str:
    """Digest of all tokens and of which are trained on."""
    digest = hashlib.sha256()
    for examples in lists:
        digest.update(len(examples).to_bytes(8, "little"))
        for example in examples:
            digest.update(len(example.token_ids).to_bytes(8, "little"))
            digest.update(example.token_ids.tobytes())
            digest.update(example.is_trained.tobytes())
    return digest.hexdigest()
