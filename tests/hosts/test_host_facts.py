from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from service.config import LoraConfig
from service.hosts.host_facts import differences, facts_of
from tests.hosts.hosts import TASK


def folder(path: Path, weights: bytes = bytes(1 << 20), config: str = "{}") -> Path:
    path.mkdir()
    (path / "config.json").write_text(config)
    (path / "model.safetensors").write_bytes(weights)
    return path


def test_the_same_model_in_two_folders_has_the_same_facts_and_every_difference_is_named(tmp_path: Path):
    trained = bytearray(1 << 20)
    trained[::5000] = b"\1" * len(trained[::5000])
    task = replace(TASK, source=replace(TASK.source, load_format="auto"), folder=folder(tmp_path / "one"))
    facts = facts_of(task)
    assert differences(facts_of(replace(task, folder=folder(tmp_path / "two"))), facts) == ""
    others = {
        "model (weights)": replace(task, folder=folder(tmp_path / "three", bytes(trained))),
        "config.json": replace(task, folder=folder(tmp_path / "four", config="{ }")),
        "dtype": replace(task, source=replace(task.source, dtype="bfloat16")),
        "block-size": replace(task, cache=replace(task.cache, block_size=32)),
        "swap-space": replace(task, cache=replace(task.cache, swap_bytes=task.cache.swap_bytes + 1)),
        "enable-finetuning": replace(task, lora=LoraConfig(2, 8, trains=True)),
        "nnodes": replace(task, parallel=replace(task.parallel, num_stages=4, num_nodes=4)),
    }
    for name, other in others.items():
        assert re.search(rf"\b{re.escape(name)}( \(.*?\))? is ", differences(facts_of(other), facts))
    assert differences({}, facts).count("is missing, but ") == len(facts)
