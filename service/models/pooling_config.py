"""How a model folder says that it is an embedding model: sentence-transformers' modules.json and the files that it
names. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType

from service.core.embedding import EmbedderConfig, Pooling
from service.errors import ModelLoadError
from service.models.config_fields import ConfigFields, read_json

MODULES = "modules.json"
_POOLINGS: Mapping[str, Pooling] = MappingProxyType({"lasttoken": "last", "mean": "mean"})
_FLAGS: Mapping[str, str] = MappingProxyType(
    {
        "pooling_mode_lasttoken": "lasttoken",
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "pooling_mode_weightedmean_tokens": "weightedmean",
    }
)


def load_embedder_config(folder: Path) -> EmbedderConfig | None:
    """None for a generating model: one without modules.json, or without a pooling module. Raises ModelLoadError naming
    what is not supported of an embedding model."""
    modules = _modules(folder / MODULES) if (folder / MODULES).is_file() else []
    kinds = [kind for kind, _ in modules]
    if "Pooling" not in kinds:
        return None
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelLoadError(
            f"{MODULES}: {', '.join(kinds)} are not supported, only Transformer, Pooling and perhaps Normalize"
        )
    config = ConfigFields(read_json(folder / "config.json"), "config.json")
    config.require("is_causal", True)
    config.require("use_bidirectional_attention", False)
    return EmbedderConfig(
        _pooling(folder, modules[1][1]),
        normalizes="Normalize" in kinds,
        size=config.size("hidden_size"),
        dimensions=_dimensions(config),
    )


def _modules(file: Path) -> list[tuple[str, str]]:
    """Each module's class, without the package, and its folder below the model's."""
    try:
        written = json.loads(file.read_text(encoding="utf-8"))
        modules = [(str(each["type"]).rpartition(".")[2], str(each.get("path", ""))) for each in written]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as fault:
        raise ModelLoadError(f"{MODULES}: is not a list of modules with type and path") from fault
    if any(PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts for _, path in modules):
        raise ModelLoadError(f"{MODULES}: a path leads out of the model folder")
    return modules


def _pooling(folder: Path, path: str) -> Pooling:
    name = f"{path}/config.json"
    file = folder / path / "config.json"
    if not file.is_file():
        raise ModelLoadError(f"{name}: is not in the model folder")
    fields = ConfigFields(read_json(file), name)
    fields.require("include_prompt", True)
    mode = fields.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else [kind for flag, kind in _FLAGS.items() if fields.flag(flag)]
    pooling = _POOLINGS.get(modes[0]) if len(modes) == 1 else None
    if pooling is None:
        raise ModelLoadError(
            f"{name}: pooling by {' and '.join(modes) or 'nothing'} is not supported, only lasttoken or mean"
        )
    return pooling


def _dimensions(config: ConfigFields) -> tuple[int, ...]:
    written = config.get("matryoshka_dimensions")
    if written is None:
        return ()
    if not isinstance(written, list) or not all(isinstance(each, int) and each > 0 for each in written):
        raise ModelLoadError("config.json: matryoshka_dimensions must be a list of whole numbers above 0")
    return tuple(sorted(written))
