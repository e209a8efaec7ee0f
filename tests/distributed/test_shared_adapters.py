from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from service.distributed.adapter_lines import AdapterLines, AdapterTaker
from service.distributed.rank_status import RankStatuses
from service.distributed.shared_adapters import SharedAdapters
from service.errors import AdapterError, ServerError
from service.layers.shard import Shard
from service.lora.adapter_folder import AdapterSite
from service.lora.adapter_layout import AdapterLayout
from service.lora.adapter_store import AdapterStore
from tests.lora.peft_adapters import base_model, save_small_adapter, sites_of


def half_of(site: AdapterSite, rank: int) -> AdapterSite:
    half = site.out_features // 2
    return AdapterSite(
        site.in_features, site.out_features, Shard(0, 2 * half, (range(rank * half, half + rank * half),))
    )


class Ranks:
    """Rank 0's adapters, and rank 1 as a thread that keeps its part in `other`."""

    def __init__(self) -> None:
        memory = RankStatuses.make_memory(2)
        statuses = RankStatuses(memory, 2)
        os.close(memory)
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own, self.other = (
            AdapterStore(
                AdapterLayout(
                    {name: half_of(site, rank) for name, site in sites_of(base_model("llama")).items()},
                    8,
                    4096,
                    torch.float32,
                ),
                pinned=False,
            )
            for rank in (0, 1)
        )
        self.taker = AdapterTaker(1, theirs, self.other, statuses)
        self.taker.start()
        self.lines = AdapterLines([self.line])
        self.adapters = SharedAdapters(own, self.lines)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    ranks = Ranks()
    yield ranks
    ranks.line.close()


def test_what_is_read_is_on_every_rank_by_one_id_until_nobody_has_it(ranks: Ranks, tmp_path: Path):
    adapter = ranks.adapters.read("poet", save_small_adapter(tmp_path))
    theirs = ranks.other.packed(adapter.adapter_id)
    assert theirs.blocks.shape == adapter.packed.blocks.shape, "one table of blocks is every rank's"
    assert not torch.equal(theirs.blocks, adapter.packed.blocks), "each has a part of its own"
    assert ranks.lines.take_dropped() == ()
    adapter_id = adapter.adapter_id
    del adapter
    gc.collect()
    assert ranks.lines.take_dropped() == (adapter_id,)
    ranks.taker.drop((adapter_id,))
    assert ranks.other.num_taken == 0


def test_a_folder_that_is_refused_reaches_no_other_rank(ranks: Ranks, tmp_path: Path):
    with pytest.raises(AdapterError):
        ranks.adapters.read("poet", tmp_path)
    assert ranks.other.num_taken == 0
    assert ranks.lines.take_dropped() == ()


def test_one_that_a_rank_cannot_take_is_dropped_by_all(ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(adapter_id: int, file: Path) -> None:
        raise MemoryError

    folder = save_small_adapter(tmp_path)
    monkeypatch.setattr(ranks.other, "take", fail)
    with pytest.raises(ServerError, match="rank 1: MemoryError"):
        ranks.adapters.read("poet", folder)
    gc.collect()
    assert len(ranks.lines.take_dropped()) == 1
    monkeypatch.undo()
    assert ranks.adapters.read("poet", folder).adapter_id == 2
