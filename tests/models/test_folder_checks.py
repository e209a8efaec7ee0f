from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.errors import ModelLoadError
from service.models.folder_checks import check_config, check_model_folder

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 301,
}
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 10432928\n"


def write(folder: Path, files: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def test_a_model_with_its_weights(tmp_path: Path):
    check_model_folder(write(tmp_path, {"config.json": CONFIG, "model.safetensors": "whatever"}))
    write(tmp_path, {"pytorch_model.bin": "whatever"})
    check_model_folder(tmp_path, torch_format=True)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, r"model: there is no config\.json in '.*/it'; give the folder that holds config\.json"),
        ({"a-Q4_K_M.gguf": ""}, "'.*/it' holds GGUF, llama.cpp's format, which is not supported; serve the original"),
        ({"config.json": CONFIG, "a.gguf": ""}, "holds GGUF"),
        (
            {"adapter_config.json": {"base_model_name_or_path": "some/base"}},
            "'.*/it' is a LoRA adapter; serve 'some/base' with --lora-modules NAME=.*/it$",
        ),
        ({"adapter_config.json": {}}, "is a LoRA adapter; serve its base model with"),
        ({"config.json": CONFIG, "adapter_config.json": {}, "adapter_model.safetensors": ""}, "is a LoRA adapter"),
        ({"config.json": CONFIG}, "no weights in the model folder: .* load-format pt"),
        ({"config.json": CONFIG, "pytorch_model.bin": ""}, "no weights in the model folder: .* load-format pt"),
        (
            {"config.json": CONFIG, "model.safetensors": POINTER},
            r"model\.safetensors: is a Git LFS pointer, .* `git lfs pull`",
        ),
        (
            {"config.json": {**CONFIG, "architectures": ["BertModel"]}},
            "'BertModel' is not supported; supported: ",
        ),
        (
            {"config.json": {**CONFIG, "quantization_config": {"quant_method": "hqq", "bits": 3}}},
            "'hqq' is not supported; supported: compressed-tensors, fp8, awq, gptq, auto-round, bitsandbytes; serve",
        ),
    ],
)
def test_what_is_no_model_that_is_served_is_told_apart_with_what_to_do(
    files: dict[str, Any], reason: str, tmp_path: Path
):
    with pytest.raises(ModelLoadError, match=reason) as told:
        check_model_folder(write(tmp_path / "it", files))
    assert "\n" not in str(told.value)


def test_a_folder_of_adapters_is_told_by_what_lies_in_it(tmp_path: Path):
    write(tmp_path / "adapters" / "pirate", {"adapter_config.json": {}})
    with pytest.raises(ModelLoadError, match=r"are LoRA adapters; serve their base model with --lora-dir .*/adapters$"):
        check_model_folder(tmp_path / "adapters")


def test_before_there_are_weights_the_config_is_checked(tmp_path: Path):
    check_config(write(tmp_path, {"config.json": CONFIG}))
    with pytest.raises(ModelLoadError, match="vocab_size is missing"):
        check_config(write(tmp_path, {"config.json": {**CONFIG, "vocab_size": None}}))
