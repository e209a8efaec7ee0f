from __future__ import annotations

from pathlib import Path

import pytest

from tests.equivalence.hf_model import save_random_model

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A random two-layer model of each family, in Hugging Face's format, fp32."""
    return {family: save_random_model(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}
