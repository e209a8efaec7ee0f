"""Which adapters are served, by name: those given at start, those loaded since, and a folder of others that are read
when a request asks for them."""

from __future__ import annotations

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path

from service.config import LoraConfig
from service.errors import AdapterError, ConfigError
from service.lora.adapter_store import AdapterReader, HostAdapter

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BAD_NAME = "not a valid name: 1 to 128 letters, digits, dots, dashes and underscores, the first a letter or digit"
_CONFIG_FILE = "adapter_config.json"
_MOST_LISTED = 1000
_MOST_REFUSALS = 1024


Read = Callable[[], HostAdapter]
"""Reads an adapter. Takes seconds."""


def read_modules(reader: AdapterReader, config: LoraConfig, taken: Collection[str]) -> dict[str, HostAdapter]:
    """Read the adapters given at start. Any thread. Raises ConfigError naming the adapter. taken: the model's names."""
    adapters: dict[str, HostAdapter] = {}
    for name, folder in config.modules:
        if name in taken or not _NAME.fullmatch(name):
            why = "the model's name" if name in taken else _BAD_NAME
            raise ConfigError(f"lora-modules: {name!r} is {why}")
        try:
            adapters[name] = reader.read(name, folder)
        except AdapterError as fault:
            raise ConfigError(f"lora-modules: {name}: {fault}") from None
    return adapters


class AdapterRegistry:
    """Implements `Adapters`. Event-loop thread. Adapters are read one at a time.

    modules: those given at start. taken: the model's names. in_thread: runs work in a thread. on_read: called with the
    seconds that reading an adapter took. on_dropped: called with an adapter that no new request can ask for; live
    requests keep it.
    """

    def __init__(
        self,
        reader: AdapterReader,
        config: LoraConfig,
        modules: Mapping[str, HostAdapter],
        taken: Collection[str],
        *,
        in_thread: Callable[[Read], Awaitable[HostAdapter]],
        on_read: Callable[[float], None],
        on_dropped: Callable[[HostAdapter], None],
    ) -> None:
        self._reader = reader
        self._folder = None if config.folder is None else config.folder.resolve()
        self._max_found = config.max_host
        self._taken = taken
        self._on_read = on_read
        self._on_dropped = on_dropped
        self._adapters = dict(modules)
        self._found: OrderedDict[str, HostAdapter] = OrderedDict()  # least recently used first
        self._folders = dict(config.modules)
        self._published: dict[str, Path] = {}
        self._reading: dict[str, asyncio.Task[HostAdapter]] = {}
        self._refused: OrderedDict[str, tuple[float, AdapterError]] = OrderedDict()
        self._in_thread = in_thread
        self._one_at_a_time = asyncio.Lock()

    def served(self) -> dict[str, str]:
        found = (
            {}
            if self._folder is None
            else {name: name for name in _adapters_below(self._folder) if name not in self._taken}
        )
        return found | {name: folder.name for name, folder in (self._folders | self._published).items()}

    def folder_name(self, name: str) -> str | None:
        known = self._folders.get(name) or self._published.get(name)
        if known is not None:
            return known.name
        return None if name in self._taken or self._folder_of(name) is None else name

    def folder_of(self, name: str) -> Path | None:
        """Folder of this adapter; None if there is none of this name."""
        return self._folders.get(name) or (None if name in self._taken else self._folder_of(name))

    async def get(self, name: str) -> HostAdapter | None:
        if name in self._adapters:
            return self._adapters[name]
        if name in self._found:
            self._found.move_to_end(name)
            return self._found[name]
        folder = self._folder_of(name)
        if folder is None or name in self._taken:
            return None
        self._check_refused(name, folder)
        try:
            adapter = await self._read_once(name, folder)
        except AdapterError as fault:
            self._note_refusal(name, folder, fault)
            raise
        if name not in self._found and name not in self._adapters and self._folder_of(name) is not None:
            self._found[name] = adapter
            while len(self._found) > self._max_found:
                self._on_dropped(self._found.popitem(last=False)[1])
        return adapter

    async def load(self, name: str, path: str, *, in_place: bool) -> HostAdapter:
        if not _NAME.fullmatch(name):
            raise AdapterError(f"lora_name: is {_BAD_NAME}", param="lora_name")
        folder = self._checked_folder(path)
        self._check_free(name, in_place=in_place)
        adapter = await self._read(name, folder)
        self._check_free(name, in_place=in_place)  # again, since another one may have been loaded meanwhile
        self._drop(name)
        self._adapters[name], self._folders[name] = adapter, folder
        return adapter

    def unload(self, name: str) -> bool:
        return self._drop(name)

    def publish(self, name: str, folder: Path) -> None:
        """Serve the adapter in this folder under this name, which no other adapter may have. It is read when a request
        asks for it, like those of `lora-dir`."""
        self._published[name] = folder

    def withdraw(self, name: str) -> None:
        """Stop serving what was published under this name; live requests keep it. Idempotent."""
        if self._published.pop(name, None) is not None:
            self._drop(name)

    def _drop(self, name: str) -> bool:
        adapter = self._adapters.pop(name, None) or self._found.pop(name, None)
        self._folders.pop(name, None)
        if adapter is not None:
            self._on_dropped(adapter)
        return adapter is not None

    def _check_free(self, name: str, *, in_place: bool) -> None:
        if name in self._taken:
            raise AdapterError(f"lora_name: {name!r} is the model's name", param="lora_name")
        if name in self._adapters and not in_place:
            raise AdapterError(f"lora_name: {name!r} is loaded already; load_inplace replaces it", param="lora_name")

    def _checked_folder(self, path: str) -> Path:
        """The folder with links resolved, which must be below that of lora-dir. Nothing outside is touched."""
        if self._folder is None:
            why = "adapters are loaded from below --lora-dir, which is not set"
            raise AdapterError(f"lora_path: {why}", param="lora_path")
        try:
            folder = (self._folder / path).resolve()
            is_below = folder.is_relative_to(self._folder)
            is_there = is_below and folder.is_dir()
        except (OSError, ValueError, RuntimeError):
            raise AdapterError("lora_path: is not a valid path", param="lora_path") from None
        if not is_there:
            why = "there is no such folder" if is_below else "is not"
            raise AdapterError(f"lora_path: {why} below the folder of --lora-dir", param="lora_path")
        return folder

    def _folder_of(self, name: str) -> Path | None:
        if name in self._published:
            return self._published[name]
        if self._folder is None or not _NAME.fullmatch(name):
            return None
        folder = (self._folder / name).resolve()
        return folder if folder.is_relative_to(self._folder) and (folder / _CONFIG_FILE).is_file() else None

    async def _read_once(self, name: str, folder: Path) -> HostAdapter:
        """Read an adapter once, however many requests ask for it at the same time."""
        if name not in self._reading:
            task = asyncio.ensure_future(self._read(name, folder))
            self._reading[name] = task
            task.add_done_callback(lambda _: self._reading.pop(name, None))
        return await asyncio.shield(self._reading[name])

    async def _read(self, name: str, folder: Path) -> HostAdapter:
        async with self._one_at_a_time:
            began_s = time.monotonic()
            adapter = await self._in_thread(partial(self._reader.read, name, folder))
            self._on_read(time.monotonic() - began_s)
            return adapter

    def _check_refused(self, name: str, folder: Path) -> None:
        """Repeat an earlier refusal unless the folder has changed since: else a client could keep the thread busy."""
        changed_s, fault = self._refused.get(name, (None, None))
        if fault is not None and changed_s == _changed_s(folder):
            raise AdapterError(str(fault), param=fault.param)

    def _note_refusal(self, name: str, folder: Path, fault: AdapterError) -> None:
        self._refused[name] = _changed_s(folder), fault
        while len(self._refused) > _MOST_REFUSALS:
            self._refused.popitem(last=False)


def _adapters_below(folder: Path) -> list[str]:
    names = (entry.name for entry, _ in zip(folder.iterdir(), range(_MOST_LISTED), strict=False))
    return sorted(name for name in names if _NAME.fullmatch(name) and (folder / name / _CONFIG_FILE).is_file())


def _changed_s(folder: Path) -> float:
    """When the folder or one of its files was last modified."""
    try:
        return max(entry.stat().st_mtime for entry in (folder, *folder.iterdir()))
    except OSError:
        return time.time()
