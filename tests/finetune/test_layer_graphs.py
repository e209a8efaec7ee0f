from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from service.core.training import StepReport
from service.finetune.dataset import Example
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.layer_graphs import CapturedSteps, CudaGraphCapture, Graph, Launch, NoGraphs, RecentPlaces
from service.finetune.lora_training import LoraTraining
from service.finetune.training_state import TrainingState
from service.models.causal_lm import CausalLM
from tests.finetune.served import completed, lora_training, served_model

CHOSEN = Hyperparameters(
    learning_rate=2e-3, rank=4, alpha=8, num_epochs=3, batch_size=8, max_length=24, micro_batch_tokens=128
)


def examples(lengths: list[int]) -> list[Example]:
    chance = np.random.default_rng(1)
    return [Example(chance.integers(3, 400, n).astype(np.int32), np.arange(n) > 0) for n in lengths]


EQUALLY_LONG = examples([24] * 16)
"""So all micro-batches launch the same on a CPU, too, where attention looks at the lengths."""


class Repeated:
    """Launches again what was launched in the capture, with what that knew, as a graph does."""

    def __init__(self, source: Repeating, launch: Launch) -> None:
        self._source, self._launch = source, launch

    def replay(self) -> None:
        self._source.num_replays += 1
        self._launch()


class Repeating:
    """A GraphCapture without a device. most: captures that it makes."""

    def __init__(self, most: int = 10**9) -> None:
        self.num_captures = self.num_replays = 0
        self._most = most

    def capture(self, launch: Launch) -> Graph | None:
        if self.num_captures == self._most:
            return None
        self.num_captures += 1
        return Repeated(self, launch)


def test_the_first_turn_is_launched_the_second_captured_the_others_replayed():
    source, launched = Repeating(), []
    steps = CapturedSteps(source)
    counts = []
    for _ in range(4):
        steps.run("one", lambda: launched.append("one"))
        counts.append((source.num_captures, source.num_replays))
    assert counts == [(0, 0), (1, 1), (1, 2), (1, 3)]
    steps.run("another", lambda: launched.append("another"))
    assert launched == ["one"] * 4 + ["another"]
    assert source.num_captures == 1


def test_of_places_those_used_last_are_kept():
    places: RecentPlaces[object] = RecentPlaces(2)
    first, second = places.at(1, object), places.at(2, object)
    assert places.at(1, object) is first
    places.at(3, object)
    assert places.at(1, object) is first
    assert places.at(2, object) is not second


@pytest.fixture(scope="module")
def llama(model_folders: Mapping[str, Path]) -> CausalLM:
    return served_model(model_folders["llama"])


Completed = tuple[list[StepReport], TrainingState]


def assert_same_bits(one: Completed, other: Completed) -> None:
    assert one[0] == other[0]
    for name in ("parameters", "first_moments", "second_moments"):
        assert torch.equal(getattr(one[1], name), getattr(other[1], name))


def completed_on_changing_memory(training: LoraTraining, device: str = "cpu") -> Completed:
    """The training has one arena, then another, then the first again, in the middle of micro-batches."""
    arenas = [torch.full((training.num_arena_bytes // 4,), math.nan, device=device).view(torch.uint8) for _ in range(2)]
    told: list[StepReport] = []
    for turn in range(6):
        training.use_memory(arenas[turn % 2].view(torch.float32).fill_(math.nan).view(torch.uint8))
        training.advance(4 * training.layer_steps_per_iteration - 3)
        told += training.take_news().reports
    rest, state = completed(training)
    return told + rest, state


def test_replayed_is_bit_equal_to_launched(llama: CausalLM):
    """Also while memory is taken away: what is replayed writes where its micro-batch is."""
    launched = completed(lora_training(llama, EQUALLY_LONG, CHOSEN, graphs=NoGraphs()))
    source = Repeating()
    assert_same_bits(completed(lora_training(llama, EQUALLY_LONG, CHOSEN, graphs=source)), launched)
    assert (source.num_captures, source.num_replays) == (8, 8 * (6 - 1)), "two layers, two sizes, six steps"
    longer = replace(CHOSEN, num_epochs=12)
    undisturbed = completed(lora_training(llama, EQUALLY_LONG, longer, graphs=NoGraphs()))
    source = Repeating()
    changing = completed_on_changing_memory(lora_training(llama, EQUALLY_LONG, longer, graphs=source))
    assert_same_bits(changing, undisturbed)
    assert source.num_captures == 16, "once a place, though each was lent three times"
    assert source.num_replays > 100


def test_where_there_are_no_more_graphs_the_rest_is_launched(llama: CausalLM):
    launched = completed(lora_training(llama, EQUALLY_LONG, CHOSEN, graphs=NoGraphs()))
    assert_same_bits(completed(lora_training(llama, EQUALLY_LONG, CHOSEN, graphs=Repeating(3))), launched)


def test_padding_to_few_sizes_changes_nothing(llama: CausalLM):
    """But for rounding: tokens and sequences that are nobody's have no part in a loss."""
    of_all_lengths = examples([5, 24, 17, 3, 9, 22, 11, 2, 13, 8])
    reports, _ = completed(lora_training(llama, of_all_lengths, CHOSEN, graphs=NoGraphs()))
    usual, _ = completed(lora_training(llama, of_all_lengths, CHOSEN))
    assert [report.loss for report in reports] == pytest.approx([report.loss for report in usual], rel=1e-5)
    assert [report.num_trained_tokens for report in reports] == [report.num_trained_tokens for report in usual]


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_on_a_gpu_replayed_is_bit_equal_to_launched(family: str, model_folders: Mapping[str, Path]):
    """Lengths, sequences and trained tokens are others in each micro-batch."""
    model = served_model(model_folders[family], torch.bfloat16, "cuda")
    chance = np.random.default_rng(0)
    various = examples(chance.integers(2, 25, 60).tolist())
    launched = completed(lora_training(model, various, CHOSEN, graphs=NoGraphs()))
    assert_same_bits(completed(lora_training(model, various, CHOSEN, graphs=CudaGraphCapture(_cuda()))), launched)
    training = lora_training(model, various, CHOSEN, graphs=CudaGraphCapture(_cuda()))
    assert_same_bits(completed_on_changing_memory(training, "cuda"), launched)


@pytest.mark.gpu
def test_on_a_gpu_a_capture_that_fails_is_the_last_and_harms_nobody():
    """What waits for the device cannot be captured. In a process of its own: what a failed capture leaves behind would
    be everybody's."""
    done = subprocess.run([sys.executable, "-c", _FAILED_CAPTURE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


_FAILED_CAPTURE = """
import torch
from service.finetune.layer_graphs import CudaGraphCapture

source, number = CudaGraphCapture(torch.device("cuda")), torch.zeros((), device="cuda")

def count():
    number.add_(1)

def wait():
    number.fill_(number.item())

count()
graph = source.capture(count)
assert graph is not None and number.item() == 1.0
graph.replay()
assert number.item() == 2.0
assert source.capture(wait) is None
assert source.capture(count) is None
assert torch.isfinite(torch.randn(4, device="cuda")).all(), "random numbers are drawn as before"
graph.replay()
assert number.item() == 3.0
"""


def _cuda() -> torch.device:
    return torch.device("cuda")
