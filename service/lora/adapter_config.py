"""Reads adapter_config.json, as written by PEFT: ranks, scales, and whether the adapter is plain LoRA at all.

Which modules the adapter changes is not read from here, but from its tensors.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from pydantic_core import SchemaError, SchemaValidator, core_schema

from service.errors import AdapterError

CONFIG_FILE = "adapter_config.json"
MAX_CONFIG_BYTES = 256 * 1024
"""PEFT writes 1 KB, or about 50 KB if every module of a large model is named with a rank of its own."""
MAX_PATTERN_CHARS = 128

_DEFAULT_RANK, _DEFAULT_ALPHA = 8, 8.0  # PEFT's
_MAX_SHOWN_CHARS = 80
_OTHER_COMPUTATIONS: Mapping[str, str] = MappingProxyType(
    {
        "use_dora": "DoRA",
        "use_qalora": "QALoRA",
        "use_bdlora": "block-diagonal LoRA",
        "alora_invocation_tokens": "activated LoRA",
        "arrow_config": "routing between adapters",
        "kasa_config": "KaSA",
        "monteclora_config": "MonteCLoRA",
        "layer_replication": "layers that are repeated",
        "lora_bias": "a bias beside B",
        "modules_to_save": "whole modules in the place of the base's",
        "trainable_token_indices": "embeddings of single tokens",
        "target_parameters": "parameters that are not linear modules",
    }
)
"""Options that, when set, compute something other than x W^T + scale * x A^T B^T; with their meaning."""

_KNOWN_VARIANTS = frozenset(
    {"use_rslora", "eva_config", "corda_config", "lora_ga_config", "loftq_config", "velora_config"}
) | {"megatron_config", "runtime_config"}
"""Options that look like variants, but only affect how the adapter was trained, or are supported here (rslora)."""

_PLAIN_INITIALIZATIONS = (None, True, False, "gaussian", "orthogonal", "eva", "mica")
"""Initializations of A and B alone. All others (PiSSA, OLoRA, CorDA, LoftQ, LoRA-GA) also change the base's weights."""


@dataclass(frozen=True, slots=True)
class AdapterConfig:
    """Rank and alpha of each module. The first pattern that matches a module's name applies, as in PEFT."""

    rank: int
    alpha: float
    use_rslora: bool
    ranks: tuple[tuple[_NamePattern, int], ...]
    alphas: tuple[tuple[_NamePattern, float], ...]

    def rank_of(self, module: str) -> int:
        """At least 1. module: its name in the model that the adapter was trained on."""
        return next((rank for pattern, rank in self.ranks if pattern.matches(module)), self.rank)

    def scale_of(self, module: str) -> float:
        """The factor on x A^T B^T: alpha / r, or alpha / sqrt(r) for rank-stabilized LoRA (Kalajdzievski 2023). Raises
        AdapterError if it exceeds fp32."""
        alpha = next((alpha for pattern, alpha in self.alphas if pattern.matches(module)), self.alpha)
        rank = self.rank_of(module)
        scale = alpha / (math.sqrt(rank) if self.use_rslora else rank)
        if abs(scale) > 3.4e38:
            raise AdapterError(f"{CONFIG_FILE}: the scale of {module}, {scale:g}, exceeds the range of fp32")
        return scale


class _NamePattern:
    """A regular expression for a module's name, or for the end of it that follows a dot.

    Matched by Rust's engine, in time linear in the name's length. With Python's, a malicious pattern could hold the
    interpreter lock for any length of time.
    """

    def __init__(self, pattern: str, field: str) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise AdapterError(f"{CONFIG_FILE}: {field}: a pattern has more than {MAX_PATTERN_CHARS} characters")
        try:
            self._whole = SchemaValidator(core_schema.str_schema(pattern=rf"^(?:.*\.)?(?:{pattern})$"))
        except SchemaError:
            raise AdapterError(
                f"{CONFIG_FILE}: {field}: {_shown(pattern)} is not a valid regular expression (look-around and"
                " back-references are not supported)"
            ) from None

    def matches(self, module: str) -> bool:
        return self._whole.isinstance_python(module)


def read_adapter_config(folder: Path, max_patterns: int) -> AdapterConfig:
    """max_patterns: the most entries of a pattern map. Raises AdapterError naming the field."""
    fields = _read_object(folder / CONFIG_FILE)
    _check_plain_lora(fields)
    return AdapterConfig(
        rank=_rank(fields.get("r", _DEFAULT_RANK), "r"),
        alpha=_alpha(fields.get("lora_alpha", _DEFAULT_ALPHA), "lora_alpha"),
        use_rslora=_flag(fields.get("use_rslora", False), "use_rslora"),
        ranks=tuple(
            (_NamePattern(key, "rank_pattern"), _rank(value, f"rank_pattern: {_shown(key)}"))
            for key, value in _patterns(fields, "rank_pattern", max_patterns).items()
        ),
        alphas=tuple(
            (_NamePattern(key, "alpha_pattern"), _alpha(value, f"alpha_pattern: {_shown(key)}"))
            for key, value in _patterns(fields, "alpha_pattern", max_patterns).items()
        ),
    )


def _read_object(file: Path) -> Mapping[str, object]:
    if not os.path.isfile(file):  # also False without permission to look
        raise AdapterError(f"{CONFIG_FILE}: is not in the adapter's folder")
    try:
        with file.open("rb") as opened:
            text = opened.read(MAX_CONFIG_BYTES + 1)
    except OSError as fault:
        raise AdapterError(f"{CONFIG_FILE}: cannot be read: {fault.strerror}") from fault
    if len(text) > MAX_CONFIG_BYTES:
        raise AdapterError(f"{CONFIG_FILE}: is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        fields = json.loads(text)
    except RecursionError:
        raise AdapterError(f"{CONFIG_FILE}: is nested too deep") from None
    except ValueError as fault:
        raise AdapterError(f"{CONFIG_FILE}: is not JSON: {fault}") from fault
    if not isinstance(fields, dict):
        raise AdapterError(f"{CONFIG_FILE}: is not a JSON object")
    return fields


def _check_plain_lora(fields: Mapping[str, object]) -> None:
    kind = fields.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{CONFIG_FILE}: peft_type is {_shown(kind)}; only 'LORA' is served")
    for name, meaning in _OTHER_COMPUTATIONS.items():
        if _is_set(fields.get(name)):
            raise AdapterError(f"{CONFIG_FILE}: {name} is set ({meaning}), which is not served")
    if fields.get("bias", "none") != "none":
        raise AdapterError(f"{CONFIG_FILE}: bias is {_shown(fields['bias'])}; only 'none' is served")
    _check_initialization(fields.get("init_lora_weights", True))
    for name in sorted(fields.keys() - _KNOWN_VARIANTS - _OTHER_COMPUTATIONS.keys()):
        # PEFT names its variants like this: refuse unknown ones of later versions, do not serve them as plain LoRA.
        if (name.startswith("use_") or name.endswith("_config")) and _is_set(fields[name]):
            raise AdapterError(f"{CONFIG_FILE}: {_shown(name)} is set, which is not supported")


def _check_initialization(value: object) -> None:
    if not any(value is plain or (isinstance(plain, str) and value == plain) for plain in _PLAIN_INITIALIZATIONS):
        raise AdapterError(
            f"{CONFIG_FILE}: init_lora_weights is {_shown(value)}, so the adapter only fits changed base weights;"
            " PEFT's save_pretrained(path_initial_model_for_weight_conversion=...) converts it"
        )


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value not in ([], {}, "")


def _patterns(fields: Mapping[str, object], name: str, at_most: int) -> Mapping[str, object]:
    patterns = fields.get(name) or {}
    if not isinstance(patterns, dict):
        raise AdapterError(f"{CONFIG_FILE}: {name} must be an object, not {_shown(patterns)}")
    if len(patterns) > at_most:
        raise AdapterError(f"{CONFIG_FILE}: {name} has {len(patterns)} entries; the model has {at_most} modules")
    return patterns


def _rank(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise AdapterError(f"{CONFIG_FILE}: {field} must be a whole number of at least 1, not {_shown(value)}")
    return value


def _alpha(value: object, field: str) -> float:
    if not isinstance(value, bool) and isinstance(value, int | float):
        try:
            alpha = float(value)
        except OverflowError:
            alpha = math.inf
        if math.isfinite(alpha):
            return alpha
    raise AdapterError(f"{CONFIG_FILE}: {field} must be a finite number, not {_shown(value)}")


def _flag(value: object, field: str) -> bool:
    if not isinstance(value, bool):
        raise AdapterError(f"{CONFIG_FILE}: {field} must be true or false, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A value from the file, shortened for an error message."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."
