"""Adapters without weights: what the HTTP surface sees of them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path

from service.core.adapter import Adapter
from service.errors import AdapterError


class SomeAdapters:
    """Every folder is an adapter but `broken`. Notes who was asked for."""

    def __init__(self, *names: str) -> None:
        self._ids = itertools.count(1)
        self._folders = {name: name for name in names}
        self._adapters = {name: self._made(name) for name in names}
        self.asked: list[str] = []

    def served(self) -> Mapping[str, str]:
        return self._folders

    def folder_name(self, name: str) -> str | None:
        return self._folders.get(name)

    async def get(self, name: str) -> Adapter | None:
        self.asked.append(name)
        if name == "broken":
            raise AdapterError("adapter_model.safetensors: holds NaN in q_proj")
        return self._adapters.get(name)

    async def load(self, name: str, path: str, *, in_place: bool) -> Adapter:
        if name in self._adapters and not in_place:
            raise AdapterError("lora_name: is loaded already", param="lora_name")
        self._folders[name] = path
        self._adapters[name] = self._made(name)
        return self._adapters[name]

    def unload(self, name: str) -> bool:
        self._folders.pop(name, None)
        return self._adapters.pop(name, None) is not None

    def publish(self, name: str, folder: Path) -> None:
        self._folders[name] = folder.name
        self._adapters[name] = self._made(name)

    def withdraw(self, name: str) -> None:
        self.unload(name)

    def _made(self, name: str) -> Adapter:
        adapter_id = next(self._ids)
        return Adapter(name, adapter_id, 2, f"{adapter_id:064x}")
