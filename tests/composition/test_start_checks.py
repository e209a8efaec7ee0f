from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.composition.start_checks import check_model_source
from service.config import ParallelConfig
from service.errors import ConfigError, ModelLoadError
from service.settings.quickstart import QUICKSTART_MODEL
from service.settings.settings import Settings

ROOT = Path(__file__).parents[2]
SERVE = """
import sys, time
from service.cli import main
status = main(["serve", *sys.argv[1:]])
print(status, bool({"torch", "numpy"} & {*sys.modules}), time.process_time() < 1)
"""


def test_what_is_served_passes():
    check_model_source(Settings().model_source())
    check_model_source(Settings(model="some/model").model_source())


def test_dummy_weights_need_no_files(tmp_path: Path):
    (tmp_path / "config.json").write_text((QUICKSTART_MODEL / "config.json").read_text())
    check_model_source(Settings(model=str(tmp_path), load_format="dummy").model_source())
    with pytest.raises(ModelLoadError, match="no weights"):
        check_model_source(Settings(model=str(tmp_path)).model_source())


def test_the_tokenizers_folder_is_looked_for():
    with pytest.raises(ModelLoadError, match=r"tokenizer: '\./nowhere' is neither"):
        check_model_source(Settings(tokenizer="./nowhere").model_source())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_model_len": 10**6}, "max-model-len: 1000000 exceeds"),
        ({"chat_template": Path("nowhere.jinja")}, "chat-template: nowhere.jinja is not a file"),
        ({"chat_template": Path("nowhere.jinja"), "model": "some/model"}, "chat-template: nowhere.jinja is not a file"),
    ],
)
def test_a_length_and_a_template_are_looked_at(wrong: dict[str, object], said: str):
    with pytest.raises(ModelLoadError, match=said):
        check_model_source(Settings(**wrong).model_source())


def test_a_template_that_is_none_is_refused_before_anything_is_loaded(tmp_path: Path):
    (tmp_path / "broken.jinja").write_text("{% for %}")
    with pytest.raises(ModelLoadError, match="chat template, line 1"):
        check_model_source(Settings(chat_template=tmp_path / "broken.jinja").model_source())


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("gguf file", "model: '{model}' is GGUF, llama.cpp's format"),
        ("adapter", "model: '{model}' is a LoRA adapter; serve 'some/base' with --lora-modules NAME={model}"),
        ("quantized otherwise", "config.json: quantization_config.quant_method 'hqq' is not supported; supported: "),
        (
            "no such quantization",
            "quantization: only fp8 can be made of plain weights",
        ),
        ("hybrid", "config.json: architecture 'Qwen3NextForCausalLM' is not supported: its layers of kind linear_att"),
        ("too long", "max-model-len: 8000 exceeds the model's context length of 2048"),
    ],
)
def test_the_command_says_so_in_one_line_within_a_second_and_without_torch_or_numpy(
    kind: str, said: str, tmp_path: Path
):
    model, options = tmp_path, list[str]()
    match kind:
        case "gguf file":
            model = tmp_path / "model.gguf"
            model.write_bytes(b"GGUF")
        case "adapter":
            (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
        case "quantized otherwise":
            shutil.copytree(QUICKSTART_MODEL, tmp_path, dirs_exist_ok=True)
            fields = json.loads((tmp_path / "config.json").read_text())
            fields["quantization_config"] = {"quant_method": "hqq", "quant_config": {}}
            (tmp_path / "config.json").write_text(json.dumps(fields))
        case "hybrid":
            kinds = {"architectures": ["Qwen3NextForCausalLM"], "layer_types": ["linear_attention", "full_attention"]}
            (tmp_path / "config.json").write_text(json.dumps(kinds))
        case "no such quantization":
            model, options = QUICKSTART_MODEL, ["--quantization", "int3"]
        case _:
            model, options = QUICKSTART_MODEL, ["--max-model-len", "8k"]
    done = subprocess.run([sys.executable, "-c", SERVE, str(model), *options], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split() == ["2", "False", "True"]
    assert done.stderr.startswith(f"headrace serve: {said.format(model=model)}")
    assert done.stderr.count("\n") == 1


def test_ranks_that_cannot_share_the_model_are_refused_with_the_numbers():
    source = Settings().model_source()
    check_model_source(source, ParallelConfig(2, 3))
    with pytest.raises(ConfigError, match="tensor-parallel-size: 3 does not divide the model's attention heads"):
        check_model_source(source, ParallelConfig(3))
    with pytest.raises(ConfigError, match="pipeline-parallel-size: 4 does not divide the model's 6 layers"):
        check_model_source(source, ParallelConfig(1, 4))
