import json
from pathlib import Path

import pytest

from loadtest.model_shapes import (
    LLAMA_8B,
    LLAMA_TWO_LAYERS,
    QWEN3_06B,
    ModelShape,
    kv_bytes_per_token,
    write_model_folder,
)
from service.models.model_config import load_model_config


@pytest.mark.parametrize("shape", [LLAMA_8B, QWEN3_06B, LLAMA_TWO_LAYERS])
def test_the_service_reads_the_folder(shape: ModelShape, tmp_path: Path) -> None:
    folder = write_model_folder(shape, tmp_path / "model")
    assert json.loads((folder / "config.json").read_text()) == dict(shape)
    assert load_model_config(folder).hidden_size == shape["hidden_size"]


def test_cached_bytes() -> None:
    assert kv_bytes_per_token(LLAMA_8B, 2) == 131_072
