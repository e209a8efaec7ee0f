from __future__ import annotations

from dataclasses import replace

import pytest

from service.composition.cache_window import attention_window, overlaps
from service.composition.model_parts import ModelParts
from service.core.layer_groups import LayerGroups
from service.settings.settings import Settings


@pytest.mark.parametrize(
    ("overlap", "is_gpu", "expected"), [(None, True, True), (None, False, False), (True, False, True)]
)
def test_iterations_overlap_on_a_gpu_unless_the_setting_says_otherwise(overlap, is_gpu, expected):
    assert overlaps(Settings(overlap=overlap), is_gpu=is_gpu) == expected


def test_what_two_iterations_compute_is_held_where_they_overlap(parts: ModelParts):
    windows = (20, None)
    config = replace(parts.loaded.model_config, sliding_windows=windows)
    groups = LayerGroups.of(windows, 100)
    alone, two = (attention_window(Settings(), config, groups, 100, 64, is_gpu=is_gpu) for is_gpu in (False, True))
    assert (alone.most_new, two.most_new) == (64, 128)
    assert attention_window(Settings(), config, LayerGroups.one(2), 20, 64, is_gpu=False) is None
