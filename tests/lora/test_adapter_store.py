from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest
import torch

from service.errors import AdapterError
from service.lora.adapter_layout import AdapterLayout
from service.lora.adapter_store import AdapterStore
from service.lora.weights_file import write_weights
from tests.lora.peft_adapters import base_model, save_small_adapter, sites_of


@pytest.fixture
def store() -> AdapterStore:
    return AdapterStore(AdapterLayout(sites_of(base_model("llama")), 8, 4096, torch.float32), pinned=False)


def test_an_adapter_is_known_by_its_id_as_long_as_somebody_has_it(store: AdapterStore, tmp_path: Path) -> None:
    adapter = store.read("poet", save_small_adapter(tmp_path))
    assert adapter.num_blocks == len(store.packed(adapter.adapter_id).blocks)
    assert store.num_bytes == adapter.packed.blocks.nbytes
    adapter_id = adapter.adapter_id
    del adapter
    gc.collect()
    assert store.num_bytes == 0
    with pytest.raises(KeyError):
        store.packed(adapter_id)


def test_what_is_read_again_is_another_adapter_with_the_same_digest(store: AdapterStore, tmp_path: Path) -> None:
    first, second = (store.read("poet", save_small_adapter(tmp_path)) for _ in range(2))
    assert first != second and first.adapter_id != second.adapter_id
    assert first.digest == second.digest
    assert store.read("poet", save_small_adapter(tmp_path, seed=1)).digest != first.digest


def test_a_refused_folder_leaves_nothing(store: AdapterStore, tmp_path: Path) -> None:
    with pytest.raises(AdapterError):
        store.read("poet", tmp_path)
    assert store.num_bytes == 0


def test_a_rank_that_serves_nobody_has_what_it_took_until_it_drops_it(store: AdapterStore, tmp_path: Path) -> None:
    """By rank 0's id, of the same weights in the same places."""
    weights = store.read_weights(save_small_adapter(tmp_path))
    kept = store.keep("poet", weights)
    with (tmp_path / "weights").open("wb") as file:
        write_weights(file, weights)
    other = AdapterStore(AdapterLayout(sites_of(base_model("llama")), 8, 4096, torch.float32), pinned=False)
    other.take(17, tmp_path / "weights")
    assert other.num_taken == 1
    assert torch.equal(other.packed(17).blocks, kept.packed.blocks)
    assert np.array_equal(other.packed(17).a_places, kept.packed.a_places)
    assert np.array_equal(other.packed(17).scales, kept.packed.scales)
    for _ in range(2):
        other.drop(17)
    gc.collect()
    assert (other.num_taken, other.num_bytes) == (0, 0)
