from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from service.composition.model_parts import load_model_parts
from service.core.clock import MonotonicClock
from service.doctor.finding import Finding, Verdict
from service.doctor.model import check_model, config_of, room_for
from service.layers.tensor_parallel import Planned
from service.models.registry import open_model
from service.runner.adapter_sites import adapter_layout, adapter_sizes
from service.runner.kv_storage import KvLayout
from service.runner.memory_profile import profile_device
from service.runner.worst_case import StepSizes
from service.settings.quickstart import QUICKSTART_MODEL
from service.settings.settings import Settings
from tests.composition.conftest import new_recorder
from tests.e2e.server_process import DUMMY_CONFIG, write_dummy_folder


def by_subject(settings: Settings) -> dict[str, Finding]:
    return {finding.subject: finding for finding in check_model(settings)}


def test_the_quickstart_model_will_do():
    found = by_subject(Settings())
    assert {finding.verdict for finding in found.values()} == {Verdict.OK}
    assert found.keys() == {"model", "weights", "kv cache", "tokenizer", "chat template"}


def test_what_fits_is_counted_by_the_shapes(tmp_path: Path):
    settings = Settings(
        model=str(write_dummy_folder(tmp_path / "m")), load_format="dummy", device="cpu", dtype="float32",
        kv_cache_memory=1 << 20, max_model_len=512,
    )  # fmt: skip
    room = room_for(settings, tmp_path / "m", config_of(settings, tmp_path / "m"))
    head_dim = DUMMY_CONFIG["hidden_size"] // DUMMY_CONFIG["num_attention_heads"]
    kv_heads, layers = DUMMY_CONFIG["num_key_value_heads"], DUMMY_CONFIG["num_hidden_layers"]
    assert room.kv_token_bytes == 2 * layers * kv_heads * head_dim * 4
    assert (room.kv_bytes, room.device) == (1 << 20, "cpu")
    tokens = (1 << 20) // room.kv_token_bytes
    told = f"{tokens} tokens of {room.kv_token_bytes} bytes: {tokens // 512} sequences"
    assert told in by_subject(settings)["kv cache"].found


GEMMA = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 6, "head_dim": 16,
    "sliding_window": 32, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 1024,
}  # fmt: skip


@pytest.mark.parametrize("kv_cache_memory", [4 << 20, 1 << 20])
def test_layers_that_give_blocks_back_are_counted_as_a_start_counts_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kv_cache_memory: int
):
    folder = write_dummy_folder(tmp_path / "m")
    (folder / "config.json").write_text(json.dumps({**DUMMY_CONFIG, **GEMMA}))
    settings = Settings(
        model=str(folder), load_format="dummy", device="cpu", dtype="float32", max_num_batched_tokens=128,
        max_num_seqs=16, kv_cache_memory=kv_cache_memory,
    )  # fmt: skip
    with caplog.at_level("INFO"):
        load_model_parts(settings, new_recorder(), MonotonicClock())
    (started,) = (record.getMessage() for record in caplog.records if "KV cache: " in record.getMessage())
    said = by_subject(settings)["kv cache"].found
    tokens, sequences = re.search(r"(\d+) tokens of \d+ bytes: (\d+) sequences", said).groups()
    assert f"KV cache: {tokens} tokens in" in started
    assert f"room for {sequences} sequences of the full context of 1024" in started
    assert said.endswith("of which 5 of 6 layers keep the last 32 only")
    if_all_kept_all = int(tokens) // 1024
    assert int(sequences) > 2 * if_all_kept_all


def test_a_cache_is_no_larger_than_what_the_sequences_can_fill(caplog: pytest.LogCaptureFixture):
    """As a start has it."""
    settings = Settings(device="cpu", dtype="float32", max_num_seqs=3, max_model_len=256, kv_cache_memory=256 << 20)
    with caplog.at_level("INFO"):
        load_model_parts(settings, new_recorder(), MonotonicClock())
    (started,) = (record.getMessage() for record in caplog.records if "KV cache: " in record.getMessage())
    said = by_subject(settings)["kv cache"].found
    tokens, sequences = re.search(r"(\d+) tokens of \d+ bytes: (\d+) sequences", said).groups()
    assert (tokens, sequences) == (str(3 * 256), "3")
    assert f"KV cache: {tokens} tokens in" in started
    assert f"room for {sequences} sequences of the full context of 256" in started


@pytest.mark.parametrize("adapters", [{"lora_dir": Path("adapters")}, {"enable_finetuning": True}])
@pytest.mark.parametrize("kv_cache_memory", [256 << 20, 8 << 20])
def test_a_cache_has_room_for_adapters_too(
    caplog: pytest.LogCaptureFixture, adapters: dict[str, object], kv_cache_memory: int
):
    """As a start has it."""
    settings = Settings(
        device="cpu", dtype="float32", max_num_seqs=3, max_model_len=256, kv_cache_memory=kv_cache_memory, max_loras=4,
        max_lora_rank=16, **adapters,
    )  # fmt: skip
    with caplog.at_level("INFO"):
        loaded = load_model_parts(settings, new_recorder(), MonotonicClock()).loaded
    (started,) = (record.getMessage() for record in caplog.records if "KV cache: " in record.getMessage())
    room = room_for(settings, QUICKSTART_MODEL, config_of(settings, QUICKSTART_MODEL))
    assert room.cache.num_blocks == loaded.num_blocks
    assert 0 < room.adapter_bytes < 256 << 20
    said = by_subject(settings)["kv cache"].found
    tokens, sequences = re.search(r"(\d+) tokens of \d+ bytes: (\d+) sequences", said).groups()
    assert f"KV cache: {tokens} tokens in" in started
    assert f"room for {sequences} sequences of the full context of 256" in started
    assert said.endswith(f"4 of rank 16 would take {room.adapter_bytes / 2**30:.2f} GiB")


@pytest.mark.parametrize("adapters", [{}, {"lora_dir": Path("adapters")}, {"enable_finetuning": True}])
@pytest.mark.parametrize("tensor_parallel_size", [1, 2])
def test_on_a_gpu_what_is_not_blocks_is_taken_off_as_a_start_does(
    monkeypatch: pytest.MonkeyPatch, adapters: dict[str, object], tensor_parallel_size: int
):
    """The start's is measured with an iteration and graphs that take nothing."""
    total, free = 8 << 30, 7 << 30
    monkeypatch.setattr("service.runner.device.choose_device", lambda requested: torch.device("cuda"))
    monkeypatch.setattr("service.runner.device.memory_bytes", lambda device: total)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, total))
    settings = Settings(
        gpu_memory_utilization=0.5, max_num_seqs=4096, tensor_parallel_size=tensor_parallel_size, **adapters
    )
    config = config_of(settings, QUICKSTART_MODEL)
    room = room_for(settings, QUICKSTART_MODEL, config)
    lora = settings.lora_config()
    model = open_model(QUICKSTART_MODEL, parallel=Planned(tensor_parallel_size)).model
    layout = KvLayout.of(config, 16, torch.bfloat16, tensor_parallel_size)
    sizes = StepSizes(4096, 8192, room.max_model_len, config.vocab_size, ())
    if lora is not None:
        sizes = replace(sizes, adapters=adapter_sizes(adapter_layout(model, layout, lora, ()), lora))
    used = StillMemory(total, free - room.weights_bytes)
    measured = profile_device(
        used, room.weights_bytes, 0.5, None, lambda: None, lambda sizes: None, (), sizes.table_bytes(layout),
        sizes.adapters.training_bytes, sizes.adapters.moments_bytes,
    )  # fmt: skip
    assert room.kv_bytes == measured.kv_cache_bytes
    assert bool(measured.training_bytes) == settings.enable_finetuning


@dataclass(frozen=True)
class StillMemory:
    """A device on which nothing changes, and whose memory others hold."""

    total_bytes: int
    free: int

    def free_bytes(self) -> int:
        return self.free

    def reserved_bytes(self) -> int:
        return 0

    def allocated_bytes(self) -> int:
        return 0

    def peak_bytes(self, work: Callable[[], None]) -> int:
        return 0


def test_a_cache_too_small_for_a_whole_context_is_a_warning_and_for_a_block_a_fault():
    few = by_subject(Settings(device="cpu", kv_cache_memory=1 << 20))["kv cache"]
    assert (few.verdict, "--max-model-len" in few.mend) == (Verdict.WARNING, True)
    assert by_subject(Settings(device="cpu", kv_cache_memory=1))["kv cache"].verdict is Verdict.FAULT


def test_weights_larger_than_the_memory_are_a_fault(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("service.runner.memory_profile.cpu_memory", lambda: (1 << 30, 1 << 20))
    assert by_subject(Settings(device="cpu"))["weights"].verdict is Verdict.FAULT


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "./nowhere"}, "neither a folder"),
        ({"max_model_len": 10**6}, "max-model-len"),
        ({"chat_template": Path("nowhere")}, "chat-template"),
        ({"tokenizer": "./nowhere"}, "tokenizer"),
    ],
)
def test_what_a_start_would_refuse_is_a_fault(wrong: dict[str, object], said: str):
    (finding,) = check_model(Settings(**wrong))
    assert (finding.verdict, said in finding.found) == (Verdict.FAULT, True)


def test_a_model_that_cannot_chat_is_a_warning(tmp_path: Path):
    shutil.copytree(QUICKSTART_MODEL, tmp_path, dirs_exist_ok=True)
    options = json.loads((tmp_path / "tokenizer_config.json").read_text())
    del options["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    assert by_subject(Settings(model=str(tmp_path)))["chat template"].verdict is Verdict.WARNING


def test_a_hub_id_is_not_fetched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *args, **kwargs: None)
    (finding,) = check_model(Settings(model="some/model"))
    assert finding.verdict is Verdict.WARNING
