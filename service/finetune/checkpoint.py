"""A training's state on disk: one file, replaced atomically.

It is a safetensors file. Its metadata says what the state belongs to, and has a digest of everything. The file is
written beside its final place, synced and renamed; if writing fails, the old file is untouched.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from service.errors import AdapterError
from service.finetune.job_faults import JobFault
from service.finetune.training_state import ParameterLayout, TrainingState
from service.lora.tensor_file import TensorFile, opened_tensors, tensor_bytes, write_tensors
from service.storage.data_folder import sync_folder

_FORMAT = "headrace training state 1"
_TENSORS = ("parameters", "first_moments", "second_moments")
_PART_SUFFIX = ".part"
_FIXED_HEADER_BYTES = 65_536
_HEADER_BYTES_PER_SITE = 1_024


class CheckpointFault(JobFault):
    """A checkpoint cannot be resumed from; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__("damaged_checkpoint", f"The job's checkpoint {reason}.")


def write_checkpoint(path: Path, state: TrainingState, belongs_to: str) -> None:
    """Replace the file at `path`. belongs_to: identifies data, base model, hyperparameters.

    Any thread, but only one at a time per path. Raises OSError; the old file is then unchanged, and no other is left.
    """
    part = path.with_name(path.name + _PART_SUFFIX)
    facts = _facts(state, belongs_to)
    tensors = {name: getattr(state, name) for name in _TENSORS}
    try:
        with part.open("wb") as file:
            write_tensors(file, tensors, {"facts": facts, "digest": _digest(facts, tensors)})
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read_checkpoint(path: Path, layout: ParameterLayout, belongs_to: str) -> TrainingState:
    """Read what `write_checkpoint` wrote. Raises CheckpointFault if it is damaged or belongs to something else."""
    num_bytes = len(_TENSORS) * layout.num_parameters * torch.float32.itemsize
    max_header_bytes = _FIXED_HEADER_BYTES + _HEADER_BYTES_PER_SITE * len(layout.sites)
    try:
        with opened_tensors(path, max_header_bytes, num_bytes) as file:
            return _checked_state(file, layout, belongs_to)
    except AdapterError as fault:
        raise CheckpointFault(f"cannot be read: {fault.message}") from fault


def _checked_state(file: TensorFile, layout: ParameterLayout, belongs_to: str) -> TrainingState:
    text, digest = (file.metadata.get(name) for name in ("facts", "digest"))
    facts = _parsed(text)
    if facts.get("format") != _FORMAT:
        raise CheckpointFault("was written by another version")
    if facts.get("belongs_to") != belongs_to:
        raise CheckpointFault("belongs to other data, another base model or other hyperparameters")
    if facts.get("layout") != _described(layout):
        raise CheckpointFault("has other target modules or another rank")
    kinds = {name: (stored.dtype, stored.shape) for name, stored in file.tensors.items()}
    if kinds != dict.fromkeys(_TENSORS, ("F32", (layout.num_parameters,))):
        raise CheckpointFault("is damaged: its tensors are not those of a checkpoint")
    tensors = {name: file.read(name) for name in _TENSORS}
    if digest != _digest(str(text), tensors):
        raise CheckpointFault("is damaged: its contents do not match its digest")
    return TrainingState(
        layout=layout,
        parameters=tensors["parameters"],
        first_moments=tensors["first_moments"],
        second_moments=tensors["second_moments"],
        step=facts["step"],
        seed=facts["seed"],
        num_trained_tokens=facts["num_trained_tokens"],
    )


def _facts(state: TrainingState, belongs_to: str) -> str:
    """Everything but the tensors, as JSON."""
    return json.dumps(
        {
            "format": _FORMAT,
            "belongs_to": belongs_to,
            "layout": _described(state.layout),
            "step": state.step,
            "seed": state.seed,
            "num_trained_tokens": state.num_trained_tokens,
        }
    )


def _parsed(text: object) -> Mapping[str, Any]:
    try:
        facts = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        facts = None
    return facts if isinstance(facts, dict) else {}


def _described(layout: ParameterLayout) -> list[object]:
    return [layout.rank, *([name, site.in_features, site.out_features] for name, site in layout.sites.items())]


def _digest(facts: str, tensors: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256(facts.encode())
    for name in _TENSORS:
        hashed.update(tensor_bytes(tensors[name]))
    return hashed.hexdigest()
