from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from service.composition.ranks import ONE_RANK, SeveralRanks, make_ranks
from service.config import ParallelConfig
from service.errors import ConfigError, ModelLoadError
from tests.distributed.scene import Scripted
from tests.distributed.test_rank_processes import TASK, comes_true, is_running, worker


def test_one_rank_is_no_other_process_and_its_executor_is_the_runner_itself():
    ranks = make_ranks(ParallelConfig())
    assert ranks is ONE_RANK
    ranks.start(lambda reason: None)
    local = Scripted()
    assert ranks.executor(local, is_gpu=False) is local
    assert ranks.load(TASK, lambda parallel: LOADED) is LOADED
    assert ranks.facts() == ()
    ranks.close()


def two_ranks(behaviour: str, losses: list[str]) -> SeveralRanks:
    ranks = SeveralRanks(ParallelConfig(2), worker(behaviour))
    ranks.start(losses.append)
    return ranks


@pytest.fixture(autouse=True)
def no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank computes nothing here."""
    monkeypatch.setattr("service.distributed.process_groups.join_ranks", lambda *where: None)


LOADED: Any = SimpleNamespace(memory=SimpleNamespace(kv_cache_bytes=1000))


def test_all_ranks_load_and_the_others_facts_are_told_until_they_end():
    losses: list[str] = []
    ranks = two_ranks("works", losses)
    try:
        assert ranks.load(TASK, lambda parallel: LOADED) is LOADED
        first, other = ranks.facts()
        assert (first.rank, first.memory_bytes, first.kv_bytes) == (0, 0, 1000)
        assert (other.rank, other.memory_bytes, other.kv_bytes) == (1, 77, 1001)
    finally:
        ranks.close()
    assert losses == []


def test_another_ranks_refusal_is_told_in_its_own_words_also_where_rank_0_fails_of_it():
    losses: list[str] = []
    ranks = two_ranks("refuses", losses)

    def fail(parallel: object) -> Any:
        assert ranks._processes is not None
        assert comes_true(lambda: not is_running(ranks._processes.pid(1)))
        raise RuntimeError("connection closed by peer")

    try:
        with pytest.raises(ModelLoadError, match="rank 1: num-things: 3 is too odd"):
            ranks.load(TASK, fail)
    finally:
        ranks.close()
    assert len(losses) == 1


def test_rank_0s_own_refusal_is_its_own():
    ranks = two_ranks("works", [])

    def refuse(parallel: object) -> Any:
        raise ConfigError("my own")

    try:
        with pytest.raises(ConfigError, match=r"^my own$"):
            ranks.load(TASK, refuse)
    finally:
        ranks.close()


def test_where_one_is_lost_all_others_are_ended_at_once():
    losses: list[str] = []
    ranks = SeveralRanks(ParallelConfig(3), worker("works"))
    ranks.start(losses.append)
    try:
        ranks.load(TASK, lambda parallel: LOADED)
        processes = ranks._processes
        assert processes is not None
        threading.Thread(target=processes._processes[0].kill).start()
        pids = [processes.pid(rank) for rank in (1, 2)]
        assert comes_true(lambda: not any(map(is_running, pids)))
        assert losses == ["rank 1 has ended, killed by SIGKILL"]
    finally:
        ranks.close()
