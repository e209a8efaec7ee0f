"""The model that comes with the service, and its adapter, with two layers of six: what a test is not about costs less.

It knows the same tokens, template and marks, and says other things.
"""

from __future__ import annotations

import json
import re
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from service.settings.quickstart import QUICKSTART_ADAPTERS, QUICKSTART_MODEL, QUICKSTART_NAME
from tests.made_once import FOLDER, made_once

NUM_LAYERS = 2
"""So many have two stages of a pipeline, too."""

_LENGTH_BYTES = 8
_LAYER = re.compile(r"\.layers\.(\d+)\.")


def short_quickstart() -> tuple[str, ...]:
    """Arguments of `headrace serve`: the model, under the name of the whole one."""
    return str(short_quickstart_folder()), "--served-model-name", QUICKSTART_NAME


def short_quickstart_folder() -> Path:
    return _folders() / "model"


def short_adapters() -> Path:
    """A folder of adapters with `pirate`. It need not talk like one any more."""
    return _folders() / "adapters"


@cache
def _folders() -> Path:
    """Made by who needs it first."""
    return Path(made_once("short quickstart", _make))


def _make() -> str:
    folder = Path(mkdtemp(dir=FOLDER))
    shutil.copytree(QUICKSTART_MODEL, folder / "model")
    shutil.copytree(QUICKSTART_ADAPTERS, folder / "adapters")
    config = folder / "model" / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": NUM_LAYERS}))
    for weights in folder.rglob("*.safetensors"):
        _shorten(weights)
    return str(folder)


def _shorten(weights: Path) -> None:
    """Leaves out the tensors of higher layers."""
    data = weights.read_bytes()
    start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
    header, kept = json.loads(data[_LENGTH_BYTES:start]), bytearray()
    for name, tensor in list(header.items()):
        layer = _LAYER.search(name)
        if layer and int(layer[1]) >= NUM_LAYERS:
            del header[name]
        elif name != "__metadata__":
            first, end = tensor["data_offsets"]
            tensor["data_offsets"] = [len(kept), len(kept) + end - first]
            kept += data[start + first : start + end]
    text = json.dumps(header).encode()
    weights.write_bytes(len(text).to_bytes(_LENGTH_BYTES, "little") + text + kept)
