from __future__ import annotations

import pytest
import torch

from service.config import CacheConfig
from service.core.training import MOST_GRAPH_TOKENS
from service.finetune.adamw import AdamW
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import LoraParameters, first_state
from service.finetune.training_state import ParameterLayout
from service.lora.adapter_folder import AdapterSite
from service.lora.adapter_layout import AdapterLayout
from service.models.model_config import parse_model_config
from service.models.registry import build_model
from service.runner.kv_storage import KvLayout
from service.runner.load_phases import LoadPhases
from service.runner.worst_case import StepSizes, WorstCase, choose_and_measure, training_bytes, training_graph_bytes
from tests.models.test_model_config import FIELDS
from tests.runner.choices.some_choices import some_choices

CPU = torch.device("cpu")


def parts(block_size=16):
    config = parse_model_config({**FIELDS, "vocab_size": 300})
    model = build_model(config)
    model.materialize(torch.float32, CPU)
    for parameter in model.parameters():
        parameter.zero_()
    return model, KvLayout.of(config, block_size, torch.float32)


@pytest.mark.each_once
@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize(
    ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "num_tokens"),
    [(4, 64, 64, 64), (3, 64, 64, 63), (64, 7, 64, 7), (2, 500, 30, 60), (1, 9, 64, 9)],
)
def test_as_many_tokens_and_draws_as_an_iteration_can_have(
    block_size, max_num_seqs, max_num_batched_tokens, max_model_len, num_tokens
):
    model, layout = parts(block_size)
    model.build_positions(max_model_len, CPU)
    sizes = StepSizes(max_num_seqs, max_num_batched_tokens, max_model_len, 300, [])
    worst = WorstCase(model, layout, CPU, sizes)
    plan = worst.plan()
    assert plan.num_scheduled_tokens == num_tokens
    assert len(plan.scheduled) == min(max_num_seqs, max_num_batched_tokens)
    assert all(len(share.samples) == 1 for share in plan.scheduled)
    assert all(len(share.block_ids) * block_size >= len(share.token_ids) for share in plan.scheduled)
    worst.run()
    worst.run()


def test_a_cpu_is_asked_for_its_free_memory_alone():
    model, layout = parts()
    cache = CacheConfig(16, 0.9, 12345)
    sizes, phases = StepSizes(4, 64, 64, 300, []), LoadPhases()
    chosen = []
    choices, ledger = choose_and_measure(
        lambda launch: chosen.append(launch()) or some_choices(), model, layout, CPU, 1000, cache, sizes, phases
    )
    assert (choices, chosen) == (some_choices(), [None])
    assert list(phases.seconds) == ["choices"]
    assert (ledger.weights_bytes, ledger.activations_bytes, ledger.kv_cache_bytes) == (1000, 0, 12345)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_training_holds_is_known_before_there_is_one(dtype: torch.dtype):
    """Every tensor that the trainer makes for its parameters and the optimizer."""
    sites = {"q": AdapterSite(8, 6), "k": AdapterSite(8, 4)}
    state = first_state(ParameterLayout(sites, rank=3), seed=0)
    parameters = LoraParameters(state, dtype, CPU)
    optimizer = AdamW(parameters, Hyperparameters(learning_rate=1e-3), state)
    values = [value for made in (parameters, optimizer) for value in vars(made).values()]
    tensors = {id(value): value for value in values if isinstance(value, torch.Tensor)}
    held = sum(tensor.nbytes for tensor in tensors.values())
    assert training_bytes(AdapterLayout(sites, 3, 64, dtype)) == held > 0


def test_graphs_of_a_training_are_given_memory_for_the_tensors_of_their_widest_layer():
    sites = {"q": AdapterSite(64, 64), "up": AdapterSite(64, 256), "down": AdapterSite(256, 64)}
    of_layers = [
        training_graph_bytes(AdapterLayout(each, 3, 512, torch.bfloat16)) for each in (sites, {"q": sites["q"]})
    ]
    value_and_gradient = 2 * 2  # of the activation, in 16 bits
    assert of_layers[0] - of_layers[1] >= MOST_GRAPH_TOKENS * value_and_gradient * (256 - 64)
