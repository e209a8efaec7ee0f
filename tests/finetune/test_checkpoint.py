"""A checkpoint is whole or as before, is its own training's, and gives every bit back."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.finetune.checkpoint import CheckpointFault, read_checkpoint, write_checkpoint
from service.finetune.job_faults import job_error
from service.finetune.training_state import ParameterLayout, TrainingState
from service.lora.adapter_folder import AdapterSite
from tests.examples import examples

SITES = {"model.layers.0.q_proj": AdapterSite(6, 4), "model.layers.0.down_proj": AdapterSite(10, 6)}
LAYOUT = ParameterLayout(SITES, 2)
MINE = "data 1, base 2"
PARTS = ("parameters", "first_moments", "second_moments")


def a_state(seed: int = 0, layout: ParameterLayout = LAYOUT) -> TrainingState:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(layout.num_parameters, generator=generator) for _ in PARTS]
    return TrainingState(layout, *tensors, step=seed, seed=2**62 + seed, num_trained_tokens=10 * seed)


def same(one: TrainingState, other: TrainingState) -> bool:
    """Bit for bit, NaN and -0 too."""
    return (one.layout, one.step, one.seed, one.num_trained_tokens) == (
        other.layout,
        other.step,
        other.seed,
        other.num_trained_tokens,
    ) and all(getattr(one, name).numpy().tobytes() == getattr(other, name).numpy().tobytes() for name in PARTS)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


def test_every_bit_comes_back(path: Path):
    state = a_state(3)
    state.parameters[:3] = torch.tensor([float("nan"), -0.0, 1e-45])
    write_checkpoint(path, state, MINE)
    assert same(read_checkpoint(path, LAYOUT, MINE), state)
    write_checkpoint(path, a_state(4), MINE)
    assert same(read_checkpoint(path, LAYOUT, MINE), a_state(4))
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint"]


def test_it_is_a_safetensors_file(path: Path):
    write_checkpoint(path, a_state(3), MINE)
    with safetensors.safe_open(path, "pt") as file:
        assert torch.equal(file.get_tensor("parameters"), a_state(3).parameters)


@pytest.mark.parametrize(
    ("layout", "belongs_to", "reason"),
    [
        (LAYOUT, "data 2, base 2", "belongs to other data"),
        (ParameterLayout(dict(reversed(SITES.items())), 2), MINE, "has other target modules"),
        (ParameterLayout(SITES, 3), MINE, "has other target modules"),
    ],
)
def test_one_of_something_else_is_refused(path: Path, layout: ParameterLayout, belongs_to: str, reason: str):
    write_checkpoint(path, a_state(3), MINE)
    with pytest.raises(CheckpointFault, match=reason):
        read_checkpoint(path, layout, belongs_to)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(choice=st.data())
def test_no_damage_is_overlooked(path: Path, choice: st.DataObject):
    """Cut, longer, or any byte another one."""
    write_checkpoint(path, a_state(3), MINE)
    whole = path.read_bytes()
    at = choice.draw(st.integers(0, len(whole) - 1))
    kind = choice.draw(st.sampled_from(["cut", "longer", "flipped"]))
    if kind == "cut":
        path.write_bytes(whole[:at])
    elif kind == "longer":
        path.write_bytes(whole + whole[: at + 1])
    else:
        flipped = bytes([whole[at] ^ choice.draw(st.integers(1, 255))])
        path.write_bytes(whole[:at] + flipped + whole[at + 1 :])
    try:
        read = read_checkpoint(path, LAYOUT, MINE)
    except CheckpointFault as fault:
        assert fault.error.code == "damaged_checkpoint"
    else:
        assert same(read, a_state(3))  # a space of the header, or the like


def test_parts_of_two_do_not_make_one(path: Path):
    write_checkpoint(path, a_state(3), MINE)
    first = path.read_bytes()
    write_checkpoint(path, replace(a_state(4), step=3, seed=a_state(3).seed, num_trained_tokens=30), MINE)
    second = path.read_bytes()
    assert len(first) == len(second)
    path.write_bytes(first[:-40] + second[-40:])
    with pytest.raises(CheckpointFault, match="digest"):
        read_checkpoint(path, LAYOUT, MINE)


def test_there_is_none(path: Path):
    with pytest.raises(CheckpointFault, match="cannot be read"):
        read_checkpoint(path, LAYOUT, MINE)


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """No file may become larger: writing beyond it fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("num_bytes", [0, 100, 900])
def test_a_disk_that_is_full_leaves_the_old_one_whole(path: Path, num_bytes: int):
    write_checkpoint(path, a_state(3), MINE)
    with largest_file(num_bytes), pytest.raises(OSError) as fault:
        write_checkpoint(path, a_state(4), MINE)
    assert job_error(fault.value).code == "storage_full"
    assert same(read_checkpoint(path, LAYOUT, MINE), a_state(3))
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_whatever_call_fails_the_old_one_is_whole(path: Path, monkeypatch: pytest.MonkeyPatch, call: str):
    write_checkpoint(path, a_state(3), MINE)

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os if call == "fsync" else Path, call, fail)
    with pytest.raises(OSError, match="Input/output"):
        write_checkpoint(path, a_state(4), MINE)
    assert same(read_checkpoint(path, LAYOUT, MINE), a_state(3))
    assert [entry.name for entry in path.parent.iterdir()] == ["checkpoint"]


def test_it_is_synced_before_it_is_put_in_its_place(path: Path, monkeypatch: pytest.MonkeyPatch):
    done: list[str] = []
    fsync, replace_file = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: (done.append("fsync"), fsync(descriptor)))
    monkeypatch.setattr(Path, "replace", lambda part, to: (done.append("replace"), replace_file(part, to)))
    write_checkpoint(path, a_state(3), MINE)
    assert done == ["fsync", "replace", "fsync"]


def test_what_an_ended_process_left_beside_it_does_not_matter(path: Path):
    path.with_name("checkpoint.part").write_bytes(b"x" * 10_000)
    write_checkpoint(path, a_state(3), MINE)
    assert same(read_checkpoint(path, LAYOUT, MINE), a_state(3))
