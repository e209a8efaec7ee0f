from __future__ import annotations

from dataclasses import replace

import pytest

from service.errors import ModelLoadError
from service.models.context_length import context_length
from service.models.model_config import load_model_config
from service.settings.quickstart import QUICKSTART_MODEL

CONFIG = load_model_config(QUICKSTART_MODEL)


def test_the_models_own_unless_less_is_wanted():
    assert context_length(CONFIG, None) == CONFIG.max_position_embeddings
    assert context_length(CONFIG, 100) == 100
    assert context_length(CONFIG, CONFIG.longest_context) == CONFIG.longest_context


def test_more_than_the_positions_reach_is_refused_with_the_limit():
    with pytest.raises(ModelLoadError, match=rf"max-model-len: .*context length of {CONFIG.longest_context}"):
        context_length(CONFIG, CONFIG.longest_context + 1)
    with pytest.raises(ModelLoadError, match="context length is 1"):
        context_length(replace(CONFIG, max_position_embeddings=1), None)
