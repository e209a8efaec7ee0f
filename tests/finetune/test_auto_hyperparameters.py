from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.finetune.auto_hyperparameters import DataSize, max_length, resolved, usual_learning_rate
from service.finetune.job import JobSpec
from service.finetune.served_base import ServedBase

BASE = ServedBase(("base",), "weights", 1000, frozenset({"q_proj"}), 64, 4096, 512)
SPEC = JobSpec("base", "file-1", seed=7)
sizes = st.builds(
    lambda num, longest, share: DataSize(num, int(num * max(2, longest * share)), longest),
    st.integers(1, 10**6),
    st.integers(2, 512),
    st.floats(0.1, 1.0),
)


@given(data=sizes, batch_size=st.none() | st.integers(1, 256), rank=st.none() | st.integers(1, 64))
def test_whatever_is_left_out_is_in_its_range_and_fits_the_data(
    data: DataSize, batch_size: int | None, rank: int | None
):
    spec = JobSpec("base", "file-1", batch_size=batch_size, rank=rank)
    found = resolved(spec, BASE, data)
    assert found.batch_size == (batch_size or found.batch_size) <= 256
    assert 1 <= found.num_epochs <= 25
    assert data.longest <= found.micro_batch_tokens <= BASE.usual_length
    assert found.rank == (rank or 16)
    assert found.alpha == 2 * found.rank


@pytest.mark.parametrize(
    ("num_examples", "num_epochs"), [(1, 25), (10, 10), (34, 3), (8333, 3), (9000, 2), (30_000, 1)]
)
def test_epochs_are_openais(num_examples: int, num_epochs: int):
    assert resolved(SPEC, BASE, DataSize(num_examples, 100 * num_examples, 100)).num_epochs == num_epochs


def test_what_is_asked_for_is_used():
    spec = JobSpec(
        "base",
        "file-1",
        seed=5,
        num_epochs=9,
        batch_size=3,
        learning_rate=0.25,
        rank=4,
        alpha=1.0,
        targets=("q_proj",),
        max_length=100,
    )
    found = resolved(spec, BASE, DataSize(10, 500, 100))
    assert (found.num_epochs, found.batch_size, found.learning_rate, found.rank, found.alpha) == (9, 3, 0.25, 4, 1.0)
    assert (found.targets, found.seed, max_length(spec, BASE)) == (("q_proj",), 5, 100)


def test_a_multiplier_is_of_the_usual_rate_which_falls_with_the_width():
    doubled = resolved(JobSpec("base", "f", learning_rate_multiplier=2.0), BASE, DataSize(10, 100, 10))
    assert doubled.learning_rate == pytest.approx(2 * usual_learning_rate(1000))
    assert usual_learning_rate(2000) == pytest.approx(5e-4)
    assert usual_learning_rate(4096) < usual_learning_rate(2000) < usual_learning_rate(64) == 5e-3


def test_an_example_that_is_longer_than_usual_fits_a_micro_batch():
    spec = JobSpec("base", "f", max_length=2000)
    found = resolved(spec, BASE, DataSize(1, 1500, 1500))
    assert found.micro_batch_tokens == 1536
    assert 1500 <= found.max_length <= found.micro_batch_tokens


def test_a_small_rank_limit_is_kept():
    base = ServedBase(("base",), "weights", 1000, frozenset(), 8, 4096, 512)
    assert resolved(SPEC, base, DataSize(1, 10, 10)).rank == 8


def test_examples_are_packed_into_what_leaves_room_for_requests_and_a_long_one_fits():
    base = replace(BASE, packed_length=256)
    assert resolved(SPEC, base, DataSize(1000, 100_000, 200)).micro_batch_tokens == 256
    assert resolved(SPEC, base, DataSize(1000, 100_000, 500)).micro_batch_tokens == 512
