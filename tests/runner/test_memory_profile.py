from __future__ import annotations

from dataclasses import replace

import pytest

from service.runner.memory_profile import GIBIBYTE, MemoryLedger, cpu_memory, profile_cpu, profile_device

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


def test_what_a_control_group_has_read_of_files_is_available(meminfo, tmp_path):
    (tmp_path / "memory.stat").write_text("anon 100\nfile 260\nshmem 10\nactive_file 50\ninactive_file 200\n")
    assert cpu_memory(meminfo, cgroup(tmp_path, 1000, 400)) == (1000, 850)


def test_the_cache_gets_a_quarter_but_no_more_than_4_gib():
    total, available = cpu_memory()
    ledger = profile_cpu(1000, None)
    assert 0 < ledger.kv_cache_bytes <= 4 * GIBIBYTE
    assert ledger.kv_cache_bytes <= total // 4
    assert abs(ledger.kv_cache_bytes - min(4 * GIBIBYTE, available // 4)) < GIBIBYTE
    assert ledger.weights_bytes == 1000


def test_what_was_given_is_taken():
    assert profile_cpu(1000, 12345).kv_cache_bytes == 12345
    assert profile_cpu(1000, 12345, num_ranks=2).kv_cache_bytes == 12345, "of each rank"


def test_the_ledger_reads_as_one_line():
    ledger = MemoryLedger(8 * GIBIBYTE, 2 * GIBIBYTE, GIBIBYTE // 4, GIBIBYTE // 2, GIBIBYTE // 8, 0, GIBIBYTE)
    text = "weights 2.00, activations 0.25, graphs 0.50, tables 0.12, other 0.00, kv cache 1.00 of 8.00 GiB"
    assert str(ledger) == text
    assert "tables 0.12, training 2.00, other" in str(replace(ledger, training_bytes=2 * GIBIBYTE))


class CountedMemory:
    """A device of 1000 bytes. Tensors hold 200, the allocator has taken 250, others and the driver 100."""

    total_bytes = 1000

    def __init__(self):
        self.taken = 350

    def free_bytes(self):
        return self.total_bytes - self.taken

    def reserved_bytes(self):
        return 250

    def allocated_bytes(self):
        return 200

    def peak_bytes(self, work):
        work()
        return 290


def profile(
    memory, *, utilization=0.9, memory_bytes=None, graph_bytes=(), tables_bytes=0, training_bytes=0, moments_bytes=0
):
    """graph_bytes: what each graph takes of the device, those that are captured only."""
    sizes, left = list(range(len(graph_bytes))), list(graph_bytes)
    iterations = []

    def capture(captured):
        assert captured == [sizes[len(sizes) - len(left)]]
        memory.taken += left.pop(0)

    ledger = profile_device(
        memory,
        77,
        utilization,
        memory_bytes,
        lambda: iterations.append(1),
        capture,
        sizes,
        tables_bytes,
        training_bytes,
        moments_bytes,
    )
    assert iterations == [1]
    return ledger


def test_the_blocks_get_what_the_rest_leaves_of_the_share():
    ledger = profile(CountedMemory(), tables_bytes=7)
    assert ledger == MemoryLedger(1000, 77, 90, 0, 7, 100, 900 - 200 - 90 - 7 - 100)


def test_what_a_training_may_hold_is_left_free():
    ledger = profile(CountedMemory(), tables_bytes=7, training_bytes=30)
    assert ledger == MemoryLedger(1000, 77, 90, 0, 7, 100, 900 - 200 - 90 - 7 - 30 - 100, 30)


@pytest.mark.parametrize(("moments_bytes", "is_tight"), [(0, False), (43, False), (44, True), (70, True)])
def test_an_optimizers_moments_are_on_the_host_where_blocks_are_few(moments_bytes, is_tight):
    ledger = profile(CountedMemory(), tables_bytes=7, training_bytes=70, moments_bytes=moments_bytes)
    assert ledger.has_moments_on_host == is_tight
    assert ledger.training_bytes == (70 - moments_bytes if is_tight else 70)
    assert ledger.kv_cache_bytes + ledger.training_bytes == 900 - 200 - 90 - 7 - 100


def test_the_first_graph_brings_the_pool_and_each_other_counts_as_the_second():
    assert profile(CountedMemory(), graph_bytes=[50]).graphs_bytes == 50
    assert profile(CountedMemory(), graph_bytes=[50, 3, 0, 0]).graphs_bytes == 50 + 3 * 3


def test_memory_that_others_give_back_meanwhile_is_no_graphs():
    assert profile(CountedMemory(), graph_bytes=[-20, 3]).graphs_bytes == 3


def test_too_small_a_share_leaves_less_than_nothing():
    assert profile(CountedMemory(), utilization=0.1).kv_cache_bytes < 0


def test_a_given_size_is_taken_and_the_rest_measured_all_the_same():
    ledger = profile(CountedMemory(), memory_bytes=12345, graph_bytes=[50])
    assert (ledger.kv_cache_bytes, ledger.activations_bytes, ledger.graphs_bytes) == (12345, 90, 50)
