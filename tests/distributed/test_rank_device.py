from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from service.distributed.rank_device import cores_of, rank_device, stay_near
from service.errors import ConfigError


def test_on_a_cpu_all_ranks_share_it():
    assert [rank_device("cpu", rank, 4) for rank in range(4)] == [torch.device("cpu")] * 4
    before = os.sched_getaffinity(0)
    stay_near(torch.device("cpu"))
    assert os.sched_getaffinity(0) == before


def test_each_rank_has_the_gpu_of_its_number_and_too_few_are_refused_with_the_numbers(monkeypatch: pytest.MonkeyPatch):
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert [rank_device("auto", rank, 2) for rank in range(2)] == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert chosen == [torch.device("cuda", 0), torch.device("cuda", 1)]
    with pytest.raises(
        ConfigError,
        match=r"tensor-parallel-size x pipeline-parallel-size: 4 ranks .* only 2 are visible \(see CUDA_VISIBLE",
    ):
        rank_device("cuda", 0, 4)


@pytest.mark.parametrize(("listed", "cores"), [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("0-1,4-5", {0, 1, 4, 5})])
def test_cores_as_the_kernel_lists_them(listed: str, cores: set[int]):
    assert cores_of(listed) == cores


@pytest.mark.parametrize("listed", ["0-4095", "", None, "4090-4095"])
def test_a_rank_stays_on_cores_that_it_may_use(listed: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever the system tells, or does not: these lists leave it where it was."""
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: chosen.append(cores))
    chosen: list[set[int]] = []
    if listed is not None:
        (tmp_path / "0000:1b:00.0").mkdir()
        (tmp_path / "0000:1b:00.0/local_cpulist").write_text(listed)
    stay_near(torch.device("cuda", 0), pci=tmp_path)
    assert all(cores == os.sched_getaffinity(0) for cores in chosen)
    assert len(chosen) == (listed == "0-4095")


@pytest.mark.parametrize(("listed", "num_local", "is_taken"), [("0-3", 2, True), ("0-2", 2, False), ("0-2", 4, True)])
def test_a_rank_is_not_sent_to_fewer_cores_than_its_share(
    listed: str, num_local: int, is_taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of eight that it may use."""
    facts = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    chosen: list[set[int]] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: facts)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: chosen.append(cores))
    (tmp_path / "0000:1b:00.0").mkdir()
    (tmp_path / "0000:1b:00.0/local_cpulist").write_text(listed)
    stay_near(torch.device("cuda", 0), num_local, tmp_path)
    assert chosen == ([cores_of(listed)] if is_taken else [])


DEVICES = """
import sys, torch
from service.distributed.rank_device import rank_device
from service.errors import ConfigError
num_local = int(sys.argv[1])
for asked in sys.argv[2:]:
    try:
        devices = [rank_device(asked, seat, num_local) for seat in range(num_local)]
        print(*(str(torch.cuda.get_device_properties(d).uuid) if d.type == "cuda" else "cpu" for d in devices))
    except ConfigError as fault:
        print(fault)
"""


def devices(visible: str, num_local: int, *asked: str) -> str:
    """Of a process that may see these, a line for each way to ask."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": visible}
    command = [sys.executable, "-c", DEVICES, str(num_local), *(asked or ("auto",))]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_an_empty_list_of_devices_has_none():
    told = devices("", 2, "auto", "cuda").splitlines()
    assert told == ["cpu cpu", "device: cuda was asked for, but torch sees no CUDA device"]


@pytest.mark.gpu
def test_devices_are_those_of_the_list_in_its_order_by_number_or_uuid():
    """The last ones of all that this process sees, backwards."""
    uuids = [str(torch.cuda.get_device_properties(number).uuid) for number in range(torch.cuda.device_count())]
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(str(number) for number in range(len(uuids)))).split(",")
    last = list(range(len(uuids)))[:-3:-1]
    for listed in ([names[number] for number in last], [f"GPU-{uuids[number]}" for number in last]):
        assert devices(",".join(listed), len(last)).split() == [uuids[number] for number in last]
        assert f"only {len(last)} are visible" in devices(",".join(listed), len(last) + 1)
