from __future__ import annotations

import pytest
import torch

from service.runner.memory_profile import GIBIBYTE, MemoryLedger, cpu_memory, profile_cpu, profile_cuda

MEMINFO = "MemTotal:       8000000 kB\nMemFree: 1 kB\nMemAvailable:   6000000 kB\n"


@pytest.fixture
def meminfo(tmp_path):
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    return path


def cgroup(tmp_path, limit, used):
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.current").write_text(f"{used}\n")
    return tmp_path


def test_without_a_control_group_the_system_speaks(meminfo, tmp_path):
    assert cpu_memory(meminfo, tmp_path / "none") == (8_000_000 * 1024, 6_000_000 * 1024)


def test_a_control_group_without_limit_changes_nothing(meminfo, tmp_path):
    assert cpu_memory(meminfo, cgroup(tmp_path, "max", 5)) == (8_000_000 * 1024, 6_000_000 * 1024)


def test_a_control_group_limits(meminfo, tmp_path):
    assert cpu_memory(meminfo, cgroup(tmp_path, 1000, 400)) == (1000, 600)
    assert cpu_memory(meminfo, cgroup(tmp_path, 1000, 1400)) == (1000, 0)


def test_the_cache_gets_a_quarter_but_no_more_than_4_gib():
    total, available = cpu_memory()
    ledger = profile_cpu(1000, None)
    assert 0 < ledger.kv_cache_bytes <= 4 * GIBIBYTE
    assert ledger.kv_cache_bytes <= total // 4
    assert abs(ledger.kv_cache_bytes - min(4 * GIBIBYTE, available // 4)) < GIBIBYTE
    assert ledger.weights_bytes == 1000


def test_what_was_given_is_taken():
    assert profile_cpu(1000, 12345).kv_cache_bytes == 12345


def test_the_ledger_reads_as_one_line():
    ledger = MemoryLedger(8 * GIBIBYTE, 2 * GIBIBYTE, GIBIBYTE // 4, GIBIBYTE // 2, GIBIBYTE // 8, 0, GIBIBYTE)
    text = "weights 2.00, activations 0.25, graphs 0.50, tables 0.12, other 0.00, kv cache 1.00 of 8.00 GiB"
    assert str(ledger) == text


@pytest.mark.gpu
def test_what_the_blocks_get_is_what_the_rest_leaves():
    device, kept = torch.device("cuda"), []

    def iteration():
        torch.empty(300 << 20, dtype=torch.uint8, device=device)

    def capture(sizes):
        kept.append(torch.empty((100 if len(kept) == 0 else 20) << 20, dtype=torch.uint8, device=device))

    ledger = profile_cuda(device, 1000, 0.5, None, iteration, capture, [1, 2, 4], 7 << 20)
    assert ledger.activations_bytes == 300 << 20
    assert abs(ledger.graphs_bytes - (140 << 20)) <= 64 << 20  # other processes may use the device
    spent = ledger.kv_cache_bytes + ledger.activations_bytes + ledger.graphs_bytes + ledger.tables_bytes
    spent += ledger.other_bytes
    assert ledger.tables_bytes == 7 << 20
    assert 0 <= int(ledger.total_bytes * 0.5) - spent < 2 << 30
    assert profile_cuda(device, 1000, 0.5, 12345, iteration, capture, [], 0).kv_cache_bytes == 12345
