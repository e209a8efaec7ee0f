from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from service.core.training import StepReport
from service.errors import InvalidRequest, TrainingDiverged
from service.finetune import adamw
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import packed
from service.finetune.training_state import TrainingState
from service.models.causal_lm import CausalLM
from tests.equivalence.hf_model import SMALL
from tests.examples import examples
from tests.finetune.peft_training import PeftTraining
from tests.finetune.served import completed, lora_training, random_examples, served_model

CHOSEN = Hyperparameters(
    learning_rate=2e-3,
    rank=4,
    alpha=8,
    num_epochs=5,
    batch_size=3,
    max_length=64,
    micro_batch_tokens=96,
    weight_decay=0.01,
)
EXAMPLES = random_examples(30, vocab_size=400, longest=60)
FEW = replace(CHOSEN, num_epochs=2, batch_size=4)
FEW_EXAMPLES = EXAMPLES[:10]  # three steps an epoch, the last one of two examples
VALIDATION = packed(EXAMPLES[10:16], 96)

Undisturbed = tuple[list[StepReport], TrainingState]


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a head so large that the loss takes several layer steps."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**{**SMALL, "vocab_size": 1600})).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(llama_folder: Path) -> CausalLM:
    return served_model(llama_folder)


@pytest.fixture(scope="module")
def undisturbed(llama: CausalLM) -> Undisturbed:
    return completed(few(llama))


def few(model: CausalLM, state: TrainingState | None = None) -> LoraTraining:
    return lora_training(model, FEW_EXAMPLES, FEW, state, validation=VALIDATION, steps_per_checkpoint=2)


def assert_same_bits(one: TrainingState, other: TrainingState) -> None:
    for name in ("parameters", "first_moments", "second_moments"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert (one.step, one.num_trained_tokens) == (other.step, other.num_trained_tokens)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_is_what_peft_computes(family: str, model_folders: Mapping[str, Path]):
    """Several sequences a micro-batch, several micro-batches a step; PEFT has one sequence at a time."""
    num_epochs = examples(2)
    chosen = replace(CHOSEN, num_epochs=num_epochs)
    training = lora_training(served_model(model_folders[family]), EXAMPLES, chosen)
    oracle = PeftTraining(model_folders[family], chosen, training.state().matrices())
    losses, norms = oracle.run(EXAMPLES)
    reports, state = completed(training)
    assert [report.step for report in reports] == list(range(1, 10 * num_epochs + 1))
    assert [report.loss for report in reports] == pytest.approx(losses, rel=1e-5)
    assert [report.gradient_norm for report in reports] == pytest.approx(norms, rel=1e-4)
    for name, matrices in oracle.matrices().items():
        for trained, expected in zip(state.matrices()[name], matrices, strict=True):
            torch.testing.assert_close(trained, expected, rtol=0, atol=1e-5)
    assert state.num_trained_tokens == sum(report.num_trained_tokens for report in reports)


def test_how_examples_are_packed_changes_nothing(llama: CausalLM):
    """Nor, so, over how many micro-batches a step's gradient is accumulated."""
    few_steps = replace(CHOSEN, num_epochs=1)
    losses = [
        [
            report.loss
            for report in completed(lora_training(llama, EXAMPLES, replace(few_steps, micro_batch_tokens=num_tokens)))[
                0
            ]
        ]
        for num_tokens in (64, 96, 512)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert losses[2] == pytest.approx(losses[0], rel=1e-5)


@settings(max_examples=examples(15), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from(["memory", "resume"])), max_size=12))
def test_interrupted_is_bit_equal_to_undisturbed(
    llama: CausalLM, undisturbed: Undisturbed, interruptions: list[tuple[int, str]]
):
    """Memory is taken away and given back with NaN in it; or the whole training goes on elsewhere, from its state."""
    training = few(llama)
    reports: dict[int, StepReport] = {}
    for num_layer_steps, kind in interruptions:
        training.advance(num_layer_steps)
        reports |= {report.step: report for report in training.take_news().reports}
        if kind == "memory":
            memory = torch.full((training.num_arena_bytes // 4,), math.nan).view(torch.uint8)
            training.use_memory(memory)
        elif len(reports) == training.state().step:  # else validation examples are under way
            training = few(llama, training.state())
    rest, state = completed(training)
    reports |= {report.step: report for report in rest}
    assert_same_bits(state, undisturbed[1])
    assert list(reports.values()) == undisturbed[0]


def test_advance_runs_as_many_layer_steps_as_it_is_told(llama: CausalLM):
    training = few(llama)
    total = 0
    while training.layer_steps_left:
        left = training.layer_steps_left
        assert left <= training.layer_steps_per_iteration == 2 * 2 + 4 + 1
        assert training.advance(1) == 1
        assert training.layer_steps_left == left - 1 or left == 1
        total += 1
    assert training.advance(5) == 0
    micro_batches = sum(len(step.micro_batches) for step in map(training._data.step, range(6)))
    assert total == 9 * micro_batches + 2 * (2 + 4) * len(VALIDATION)
    assert not training.is_over, "the end was not told yet"
    training.take_news()
    assert training.is_over


def test_states_are_told_where_checkpoints_are_due(llama: CausalLM, undisturbed: Undisturbed):
    training = few(llama)
    states: list[TrainingState] = []
    num_told = 0
    while not training.is_over:
        training.advance(1)
        news = training.take_news()
        num_told += len(news.reports)
        if news.state is not None:
            assert isinstance(news.state, TrainingState)
            assert news.state.step == num_told, "as of the last report"
            states.append(news.state)
    assert [state.step for state in states] == [2, 3, 4, 6]
    for state in states[:-1]:
        assert_same_bits(completed(few(llama, state))[1], undisturbed[1])


def test_one_that_was_at_its_end_tells_it_again(llama: CausalLM, undisturbed: Undisturbed):
    training = few(llama, undisturbed[1])
    assert not training.is_over
    assert training.layer_steps_left == 1
    reports, state = completed(training)
    assert reports == []
    assert_same_bits(state, undisturbed[1])


def test_validation_is_told_at_each_epochs_end_and_changes_nothing(
    llama: CausalLM, llama_folder: Path, undisturbed: Undisturbed
):
    reports, state = undisturbed
    assert [report.step for report in reports if report.valid_loss is not None] == [3, 6]
    without = lora_training(llama, FEW_EXAMPLES, FEW)
    assert_same_bits(completed(without)[1], state)
    oracle = PeftTraining(llama_folder, FEW, state.matrices())
    loss, accuracy = oracle.evaluate(EXAMPLES[10:16])
    assert reports[-1].valid_loss == pytest.approx(loss, rel=1e-5)
    assert reports[-1].valid_accuracy == pytest.approx(accuracy)


def test_where_the_optimizers_moments_lie_changes_nothing(
    llama: CausalLM, undisturbed: Undisturbed, monkeypatch: pytest.MonkeyPatch
):
    """Also where a job goes on that had them elsewhere."""
    monkeypatch.setattr(adamw, "_PART", 1 << 10)
    first = lora_training(llama, FEW_EXAMPLES, FEW, validation=VALIDATION, steps_per_checkpoint=2, moments_on_host=True)
    while first.state().step < 2:
        first.advance(1)
    first.take_news()
    assert_same_bits(completed(few(llama, first.state()))[1], undisturbed[1])
    assert_same_bits(completed(first)[1], undisturbed[1])


def test_a_loss_that_is_no_number_ends_it(llama: CausalLM):
    training = lora_training(llama, EXAMPLES, replace(CHOSEN, learning_rate=1e30))
    told: list[StepReport] = []
    with pytest.raises(TrainingDiverged, match=r"step \d+ the loss is"):
        while not training.is_over:
            training.advance(1)
            told += training.take_news().reports
    assert all(math.isfinite(report.loss) for report in told)


def test_learns_in_bf16(model_folders: Mapping[str, Path]):
    """Weights and products in bf16, what is trained in fp32."""
    once_more = replace(CHOSEN, num_epochs=12, learning_rate=1e-2, batch_size=4)
    exact, rounded = (
        completed(lora_training(served_model(model_folders["qwen3"], dtype), EXAMPLES[:8], once_more))[0]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert rounded[-1].loss < 0.7 * rounded[0].loss
    assert [report.loss for report in rounded] == pytest.approx([report.loss for report in exact], rel=0.05)


@pytest.mark.parametrize(
    "fault", [lambda ids: ids.__setitem__(1, 1600), lambda ids: ids.__setitem__(1, -1)], ids=["beyond", "below"]
)
def test_a_token_that_the_model_has_not_is_refused(llama: CausalLM, fault: Callable[..., None]):
    examples = random_examples(2, vocab_size=400, longest=9)
    fault(examples[0].token_ids)
    with pytest.raises(InvalidRequest, match="outside the model's vocabulary of 1600"):
        completed(lora_training(llama, examples, CHOSEN))


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral"])
def test_on_a_gpu_it_is_near_and_interrupted_bit_equal(family: str, model_folders: Mapping[str, Path]):
    on_cpu = served_model(model_folders[family], torch.bfloat16)
    model = served_model(model_folders[family], torch.bfloat16, "cuda")
    expected = completed(lora_training(on_cpu, EXAMPLES, CHOSEN))[0]
    reports, state = completed(lora_training(model, EXAMPLES, CHOSEN))
    assert [report.loss for report in reports] == pytest.approx([report.loss for report in expected], rel=0.02)
    training = lora_training(model, EXAMPLES, CHOSEN)
    told: list[StepReport] = []
    for _ in range(20):
        training.advance(17)
        told += training.take_news().reports
        training.use_memory(torch.full((training.num_arena_bytes // 4,), math.nan, device="cuda").view(torch.uint8))
    rest, interrupted = completed(training)
    assert told + rest == reports
    assert_same_bits(interrupted, state)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_on_a_gpu_nobody_waits_within_a_layer_step(model_folders: Mapping[str, Path]):
    training = lora_training(served_model(model_folders["qwen3"], torch.bfloat16, "cuda"), EXAMPLES, CHOSEN)
    for _ in range(3):  # kernels are compiled, memory is taken
        training.advance(training.layer_steps_per_iteration)
    training.take_news()
    try:
        torch.cuda.set_sync_debug_mode("error")
        training.advance(4 * training.layer_steps_per_iteration)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert training.take_news().reports
