import pytest

from loadtest.model_shapes import (
    GEMMA_3_4B,
    GPT_OSS_20B,
    LLAMA_2_LAYERS,
    LLAMA_8B,
    LLAMA_31_8B,
    LLAMA_135M,
    QWEN3_06B,
    kv_bytes_per_token,
    plain_ids_end,
    read_shape,
    shape_folder,
)
from service.models.model_config import load_model_config


@pytest.mark.parametrize(
    "name", [LLAMA_8B, LLAMA_31_8B, QWEN3_06B, GEMMA_3_4B, GPT_OSS_20B, LLAMA_135M, LLAMA_2_LAYERS]
)
def test_the_service_reads_the_folder(name: str) -> None:
    assert load_model_config(shape_folder(name)).hidden_size == read_shape(name)["hidden_size"]


def test_cached_bytes() -> None:
    assert kv_bytes_per_token(read_shape(LLAMA_8B), 2) == 131_072


@pytest.mark.parametrize("name", [LLAMA_8B, QWEN3_06B, LLAMA_135M, LLAMA_2_LAYERS])
def test_what_ends_a_text_is_no_plain_id(name: str) -> None:
    shape = read_shape(name)
    assert shape["eos_token_id"] not in range(3, plain_ids_end(shape))
