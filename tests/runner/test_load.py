from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from service.config import CacheConfig, LoraConfig
from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.errors import ConfigError, ModelLoadError
from service.finetune.hyperparameters import Hyperparameters
from service.layers.packed_weight import WeightForm, can_pack
from service.runner import load as load_module
from service.runner.host_blocks import PlainHostBlocks
from service.runner.load import load_executor
from tests.finetune.served import completed, lora_training, random_examples
from tests.models.checkpoints import llama, qwen3
from tests.models.test_model_config import FIELDS
from tests.runner.loading import load, source

CACHE = CacheConfig(block_size=16, memory_utilization=0.9, memory_bytes=1 << 20)


def test_an_fp8_cache_needs_a_gpu_that_knows_it(monkeypatch):
    """And is swapped as it is."""
    gpu, wanted = torch.device("cuda"), replace(CACHE, dtype="fp8", swap_compression="fp8")
    monkeypatch.setattr(load_module, "choose_device", lambda name: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"kv-cache-dtype: fp8 needs .* capability 8\.9; this one has 8\.0"):
        load_module._chosen_device(source(Path()), wanted)
    assert load_module._chosen_device(source(Path()), CACHE) == gpu
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert load_module._chosen_device(source(Path()), wanted) == gpu
    assert load_module._kind_of_host_blocks(wanted) is PlainHostBlocks


def config_folder(tmp_path, **changes):
    (tmp_path / "config.json").write_text(json.dumps({**FIELDS, **changes}))
    return tmp_path


@pytest.mark.parametrize("save", [llama, qwen3])
def test_facts_of_a_loaded_model(save, tmp_path):
    calls = []
    loaded = load(save(tmp_path), on_progress=lambda *call: calls.append(call))
    assert (loaded.dtype, loaded.device, loaded.max_model_len) == ("float32", "cpu", 512)
    assert loaded.generation.eos_token_ids == {2}
    heads = loaded.model_config.num_kv_heads * loaded.model_config.head_dim
    assert loaded.block_bytes == 2 * 2 * 16 * heads * 4
    assert loaded.num_blocks == min((64 << 20) // loaded.block_bytes, 64 * 512 // 16)
    assert loaded.memory.kv_cache_bytes == loaded.num_blocks * loaded.block_bytes
    assert loaded.num_threads >= 1
    assert loaded.memory.weights_bytes > 0
    assert calls[-1] == ("weights", loaded.memory.weights_bytes, loaded.memory.weights_bytes)


def test_where_adapters_are_trained_the_plain_weights_stay(tmp_path):
    folder = config_folder(tmp_path)
    how = source(folder, load_format="dummy")
    lora = LoraConfig(num_slots=1, max_rank=8, trains=True)
    loaded = load_executor(how, folder, CACHE, 4, 64, lora=lora)
    assert set(loaded.choices.linears.values()) != {WeightForm.PLAIN} or not can_pack(torch.float32)
    for projection in loaded.model.projections:
        assert projection.plain_weight.shape == tuple(map(int, projection.shape_name.split("x")))
    chosen = Hyperparameters(learning_rate=1e-3, rank=8, num_epochs=1, batch_size=2)
    training = lora_training(loaded.model, random_examples(4, vocab_size=300, longest=20), chosen)
    assert [report.step for report in completed(training)[0]] == [1, 2]


def test_dummy_weights_need_a_config_alone(tmp_path):
    folder = config_folder(tmp_path)
    loaded = load_executor(source(folder, load_format="dummy"), folder, CACHE, 4, 64)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    share = ScheduledSequence(1, 1, (1, 2, 3), 0, 0, (0,), params, (Sample(1, 0),))
    ids = loaded.runner.launch(IterationPlan((share,))).wait().token_ids
    assert 0 <= ids[0] < 300


def test_max_model_len_may_shrink_but_not_exceed_the_context(tmp_path):
    folder = config_folder(tmp_path, max_position_embeddings=128)
    loaded = load_executor(source(folder, load_format="dummy", max_model_len=100), folder, CACHE, 4, 64)
    assert loaded.max_model_len == 100
    with pytest.raises(ModelLoadError, match="max-model-len: 129 exceeds the model's context length of 128"):
        load_executor(source(folder, load_format="dummy", max_model_len=129), folder, CACHE, 4, 64)


def test_a_context_without_room_for_an_answer_is_refused(tmp_path):
    folder = config_folder(tmp_path, max_position_embeddings=1)
    with pytest.raises(ModelLoadError, match="context length is 1; a prompt and an answer need 2 tokens"):
        load_executor(source(folder, load_format="dummy"), folder, CACHE, 4, 64)


def test_weights_that_memory_cannot_hold_are_refused_before_it_is_taken(tmp_path):
    folder = config_folder(tmp_path, vocab_size=10**13)
    with pytest.raises(
        ModelLoadError, match=r"model: the weights take \d+\.\d GiB, but only \d+\.\d GiB of the cpu's memory"
    ):
        load_executor(source(folder, load_format="dummy"), folder, CACHE, 4, 64)


def test_a_cache_smaller_than_a_block_is_refused_with_the_numbers(tmp_path):
    folder = config_folder(tmp_path)
    cache = CacheConfig(block_size=16, memory_utilization=0.9, memory_bytes=100)
    with pytest.raises(ConfigError, match=r"kv-cache-memory: 100 bytes .* one block of 16 tokens takes 16384"):
        load_executor(source(folder, load_format="dummy"), folder, cache, 4, 64)


def test_a_cache_that_the_host_cannot_hold_is_refused_before_it_is_taken(tmp_path):
    folder = config_folder(tmp_path)
    cache = CacheConfig(block_size=16, memory_utilization=0.9, memory_bytes=1 << 50)
    with pytest.raises(
        ConfigError, match=r"kv-cache-memory: on the host, .* take \d+\.\d GiB, but only \d+\.\d GiB are free"
    ):
        load_executor(source(folder, load_format="dummy"), folder, cache, 10_000_000, 10_000_001)


@pytest.mark.parametrize("block_size", [1, 2, 256])
def test_warms_up_with_any_block_size(block_size, tmp_path):
    folder = config_folder(tmp_path)
    cache = CacheConfig(block_size=block_size, memory_utilization=0.9, memory_bytes=1 << 22)
    load_executor(source(folder, load_format="dummy"), folder, cache, 4, 64)


def test_a_folder_without_weights_is_refused(tmp_path):
    folder = config_folder(tmp_path)
    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        load(folder)
