from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from service.doctor.finding import Finding, Verdict
from service.doctor.model import check_model, room_for
from service.settings.quickstart import QUICKSTART_MODEL
from service.settings.settings import Settings
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
    room = room_for(settings, tmp_path / "m")
    head_dim = DUMMY_CONFIG["hidden_size"] // DUMMY_CONFIG["num_attention_heads"]
    kv_heads, layers = DUMMY_CONFIG["num_key_value_heads"], DUMMY_CONFIG["num_hidden_layers"]
    assert room.kv_token_bytes == 2 * layers * kv_heads * head_dim * 4
    assert (room.kv_bytes, room.device) == (1 << 20, "cpu")
    tokens = (1 << 20) // room.kv_token_bytes
    told = f"{tokens} tokens of {room.kv_token_bytes} bytes: {tokens // 512} sequences"
    assert told in by_subject(settings)["kv cache"].found


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
