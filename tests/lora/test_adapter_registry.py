from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import torch

from service.config import LoraConfig
from service.errors import AdapterError, ConfigError
from service.lora.adapter_layout import AdapterLayout
from service.lora.adapter_registry import AdapterRegistry, read_modules
from service.lora.adapter_store import AdapterStore, HostAdapter
from tests.lora.peft_adapters import base_model, save_small_adapter, sites_of

TAKEN = ("base",)


class Scene:
    """A registry over `folder`, with what it told."""

    def __init__(self, folder: Path, *modules: tuple[str, Path], most: int = 2, has_folder: bool = True) -> None:
        self.folder = folder
        self.store = AdapterStore(AdapterLayout(sites_of(base_model("llama")), 8, 4096, torch.float32), pinned=False)
        config = LoraConfig(4, 8, modules, folder if has_folder else None, most)
        self.reads: list[float] = []
        self.dropped: list[HostAdapter] = []
        self.registry = AdapterRegistry(
            self.store,
            config,
            read_modules(self.store, config, TAKEN),
            TAKEN,
            in_thread=asyncio.to_thread,
            on_read=self.reads.append,
            on_dropped=self.dropped.append,
        )


@pytest.fixture(scope="module")
def adapter_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_adapter(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(tmp_path: Path, adapter_folder: Path) -> Path:
    """Holds adapters `poet`, `clerk`, `cook`, one that is broken, and a folder that is none."""
    for name in ("poet", "clerk", "cook", "broken"):
        shutil.copytree(adapter_folder, tmp_path / "adapters" / name)
    (tmp_path / "adapters/broken/adapter_model.safetensors").write_bytes(b"?")
    (tmp_path / "adapters/notes").mkdir()
    shutil.copytree(adapter_folder, tmp_path / "outside")
    return tmp_path / "adapters"


def run(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_those_of_the_folder_are_read_once_when_somebody_asks_however_many_do(folder: Path) -> None:
    shutil.copytree(folder / "poet", folder / TAKEN[0])

    async def scene() -> None:
        there = Scene(folder)
        assert list(there.registry.served()) == ["broken", "clerk", "cook", "poet"]
        assert there.reads == []
        adapters = await asyncio.gather(*(there.registry.get("poet") for _ in range(9)))
        assert len(set(adapters)) == 1 and adapters[0] is not None and adapters[0].name == "poet"
        assert len(there.reads) == 1

    run(scene)


@pytest.mark.parametrize("name", ["nobody", "notes", "base", "", ".", "..", "../outside", "a/b", "x" * 300, "a\0b"])
def test_what_is_no_adapter_of_the_folder_is_not_there(folder: Path, name: str) -> None:
    async def scene() -> None:
        there = Scene(folder)
        assert await there.registry.get(name) is None
        assert there.registry.folder_name(name) is None
        assert there.reads == []

    run(scene)


def test_a_link_that_leads_out_of_the_folder_is_not_followed(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent / "outside")

    async def scene() -> None:
        there = Scene(folder)
        assert await there.registry.get("link") is None
        with pytest.raises(AdapterError, match=r"lora_path: is not below"):
            await there.registry.load("other", "link", in_place=False)

    run(scene)


def test_no_more_are_kept_than_may_be_and_the_one_that_was_asked_for_longest_ago_goes(folder: Path) -> None:
    async def scene() -> None:
        there = Scene(folder, most=2)
        for name in ("poet", "clerk", "poet", "cook"):
            await there.registry.get(name)
        assert [adapter.name for adapter in there.dropped] == ["clerk"]
        assert len(there.reads) == 3
        await there.registry.get("poet")
        assert len(there.reads) == 3
        await there.registry.get("clerk")
        assert len(there.reads) == 4

    run(scene)


def test_one_that_was_refused_is_not_read_again_before_it_has_changed(
    folder: Path, adapter_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        there = Scene(folder)
        reads, read = [], there.store.read
        monkeypatch.setattr(there.store, "read", lambda name, path: (reads.append(name), read(name, path))[1])
        for _ in range(3):
            with pytest.raises(AdapterError, match=r"adapter_model\.safetensors"):
                await there.registry.get("broken")
        assert reads == ["broken"]
        shutil.copy(adapter_folder / "adapter_model.safetensors", folder / "broken")
        assert await there.registry.get("broken") is not None

    run(scene)


def test_a_loaded_one_is_served_by_its_new_name_until_it_is_unloaded(folder: Path) -> None:
    async def scene() -> None:
        there = Scene(folder)
        adapter = await there.registry.load("muse", "poet", in_place=False)
        assert await there.registry.get("muse") is adapter
        assert there.registry.served()["muse"] == there.registry.folder_name("muse") == "poet"
        assert there.registry.folder_name("clerk") == "clerk" and len(there.reads) == 1
        assert there.registry.unload("muse")
        assert there.dropped == [adapter]
        assert await there.registry.get("muse") is None
        assert not there.registry.unload("muse")

    run(scene)


def test_a_name_is_taken_once_unless_it_is_to_be_replaced(folder: Path) -> None:
    async def scene() -> None:
        there = Scene(folder)
        first = await there.registry.load("muse", "poet", in_place=False)
        with pytest.raises(AdapterError, match=r"lora_name: 'muse' is loaded already; load_inplace"):
            await there.registry.load("muse", "clerk", in_place=False)
        with pytest.raises(AdapterError, match=r"adapter_model\.safetensors"):
            await there.registry.load("muse", "broken", in_place=True)
        assert await there.registry.get("muse") is first and there.dropped == []
        second = await there.registry.load("muse", "clerk", in_place=True)
        assert await there.registry.get("muse") is second and there.dropped == [first]

    run(scene)


def test_of_two_that_are_loaded_at_once_under_one_name_one_is_refused(folder: Path) -> None:
    async def scene() -> None:
        there = Scene(folder)
        loads = [there.registry.load("muse", each, in_place=False) for each in ("poet", "clerk")]
        first, second = await asyncio.gather(*loads, return_exceptions=True)
        assert isinstance(first, HostAdapter) and isinstance(second, AdapterError)
        assert await there.registry.get("muse") is first

    run(scene)


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("base", "poet", r"lora_name: 'base' is the model's name"),
        ("a b", "poet", r"lora_name: is not a valid name"),
        ("muse", "../outside", r"lora_path: is not below"),
        ("muse", "/etc", r"lora_path: is not below"),
        ("muse", "nowhere", r"lora_path: there is no such folder"),
        ("muse", "a\0b", r"lora_path: is not a valid path"),
        ("muse", "x" * 9000, r"lora_path: "),
        ("muse", "notes", r"adapter_config\.json"),
    ],
)
def test_what_cannot_be_loaded_is_refused_naming_the_field(folder: Path, name: str, path: str, message: str) -> None:
    async def scene() -> None:
        there = Scene(folder)
        with pytest.raises(AdapterError, match=message):
            await there.registry.load(name, path, in_place=False)
        assert "muse" not in there.registry.served()

    run(scene)


def test_without_a_folder_nothing_is_loaded_from_anywhere(folder: Path) -> None:
    async def scene() -> None:
        there = Scene(folder, ("poet", folder / "poet"), has_folder=False)
        assert list(there.registry.served()) == ["poet"]
        assert await there.registry.get("clerk") is None
        with pytest.raises(AdapterError, match=r"lora_path: .*--lora-dir, which is not set"):
            await there.registry.load("muse", str(folder / "poet"), in_place=False)

    run(scene)


@pytest.mark.parametrize(
    ("name", "path", "message"),
    [
        ("base", "poet", "lora-modules: 'base' is the model's name"),
        ("a/b", "poet", "lora-modules: 'a/b' is not a valid name"),
        ("muse", "broken", r"lora-modules: muse: adapter_model\.safetensors"),
        ("muse", "nowhere", r"lora-modules: muse: adapter_config\.json"),
    ],
)
def test_a_module_of_the_start_that_cannot_be_served_stops_it(folder: Path, name: str, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Scene(folder, (name, folder / path))


def test_what_is_published_is_read_when_somebody_asks_and_gone_when_it_is_withdrawn(folder: Path) -> None:
    name = "ft:base:headrace:facts:1"

    async def scene() -> None:
        there = Scene(folder, has_folder=False)
        assert there.registry.folder_name(name) is None and await there.registry.get(name) is None
        there.registry.publish(name, folder.parent / "outside")
        assert there.registry.served() == {name: "outside"} and there.registry.folder_name(name) == "outside"
        assert there.registry.folder_of(name) == folder.parent / "outside"
        assert there.registry.folder_of("base") is there.registry.folder_of("nobody") is None
        assert there.reads == []
        adapter = await there.registry.get(name)
        assert adapter is not None and adapter is await there.registry.get(name)
        there.registry.unload(name)
        assert await there.registry.get(name) is not None and len(there.reads) == 2, "it is still published"
        there.registry.withdraw(name)
        there.registry.withdraw(name)
        assert there.registry.served() == {} and await there.registry.get(name) is None
        assert len(there.dropped) == 2

    run(scene)


def test_what_is_withdrawn_while_it_is_read_is_not_there_afterwards(folder: Path) -> None:
    async def scene() -> None:
        there = Scene(folder, has_folder=False)
        there.registry.publish("ft:a", folder / "poet")
        reading = asyncio.ensure_future(there.registry.get("ft:a"))
        await asyncio.sleep(0)
        there.registry.withdraw("ft:a")
        assert await reading is not None
        assert await there.registry.get("ft:a") is None

    run(scene)
