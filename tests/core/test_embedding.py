from __future__ import annotations

import numpy as np
import pytest

from service.core.embedding import EmbedderConfig
from service.core.sampling_params import SamplingParams


def test_a_vector_is_cut_and_then_made_one_long():
    pooled = np.array([3, 4, 12], np.float32)
    normed, plain = EmbedderConfig("last", True, 3), EmbedderConfig("last", False, 3)
    np.testing.assert_array_equal(normed.finished(pooled, None), pooled / np.float32(13))
    np.testing.assert_array_equal(normed.finished(pooled, 2), np.array([0.6, 0.8], np.float32))
    np.testing.assert_array_equal(plain.finished(pooled, 2), pooled[:2])
    assert normed.finished(pooled, None).dtype == np.dtype("<f4")
    assert pooled.tolist() == [3, 4, 12]


def test_nothing_is_divided_by_nothing():
    assert EmbedderConfig("mean", True, 2).finished(np.zeros(2, np.float32), None).tolist() == [0, 0]


def test_what_is_pooled_draws_nothing():
    assert not SamplingParams(0, pooling="last").is_plain
    with pytest.raises(AssertionError):
        SamplingParams(1, pooling="last")
