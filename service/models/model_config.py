"""What a model folder's config.json says, in our words: the only place that knows Hugging Face's spellings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from service.errors import ModelLoadError
from service.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

CheckpointDtype = Literal["bfloat16", "float16", "float32"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only Transformer's shape. Sizes in elements, lengths in tokens.

    architecture: the name that the registry knows, as in config.json's `architectures`.
    max_position_embeddings: the model's own context length.
    attention_bias: q, k, v and output projections have a bias; mlp_bias likewise.
    checkpoint_dtype: of the weights on disk, by config.json; float32 if it does not say.
    eos_token_ids, bos_token_id: as config.json has them; generation_config.json may say otherwise.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position_embeddings: int
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool
    checkpoint_dtype: CheckpointDtype
    eos_token_ids: frozenset[int]
    bos_token_id: int | None

    @property
    def longest_context(self) -> int:
        """The longest context that the position encoding reaches: the model's own, or more with dynamic scaling."""
        scaling = self.rope.scaling
        if isinstance(scaling, DynamicScaling):
            return int(scaling.factor * self.max_position_embeddings)
        return self.max_position_embeddings


def load_model_config(folder: Path) -> ModelConfig:
    """Read config.json. Raises ModelLoadError naming the field."""
    return parse_model_config(read_json(folder / "config.json"))


def read_json(path: Path) -> Mapping[str, object]:
    """A JSON object from a file of the model folder. Raises ModelLoadError naming the file."""
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelLoadError(f"{path.name}: not in the model folder") from None
    except (OSError, ValueError) as fault:
        raise ModelLoadError(f"{path.name}: cannot be read: {fault}") from fault
    if not isinstance(fields, dict):
        raise ModelLoadError(f"{path.name}: is not a JSON object")
    return fields


def parse_model_config(fields: Mapping[str, object]) -> ModelConfig:
    """config.json's fields, checked. Raises ModelLoadError naming the field."""
    reader = _Fields(fields, "config.json")
    architecture = _architecture(fields)
    _refuse_what_is_not_served(fields)

    hidden_size = reader.size("hidden_size")
    num_heads = reader.size("num_attention_heads")
    num_kv_heads = reader.size("num_key_value_heads", num_heads)
    default_head_dim = 128 if architecture == "Qwen3ForCausalLM" else max(1, hidden_size // num_heads)
    head_dim = reader.size("head_dim", default_head_dim)
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {num_heads} is no multiple of num_key_value_heads {num_kv_heads}"
        )
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embedding turns pairs")
    max_positions = reader.size("max_position_embeddings", 2048)

    return ModelConfig(
        architecture=architecture,
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=reader.size("intermediate_size"),
        num_layers=reader.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        rope=_rope(fields, head_dim, max_positions),
        max_position_embeddings=max_positions,
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
        attention_bias=reader.flag("attention_bias"),
        mlp_bias=reader.flag("mlp_bias"),
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=token_ids(fields.get("eos_token_id")),
        bos_token_id=min(token_ids(fields.get("bos_token_id")), default=None),
    )


def token_ids(value: object) -> frozenset[int]:
    """An id, a list of ids or nothing, as Hugging Face writes special tokens."""
    values = value if isinstance(value, list) else [value]
    return frozenset(v for v in values if isinstance(v, int) and not isinstance(v, bool))


class _Fields:
    """Typed access to a JSON object's fields; null counts as missing. Faults name the field."""

    def __init__(self, fields: Mapping[str, object], source: str) -> None:
        self._fields = fields
        self._source = source

    def number(self, name: str, default: float | None = None) -> float:
        value = self._fields.get(name)
        if value is None:
            if default is None:
                raise ModelLoadError(f"{self._source}: {name} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise ModelLoadError(f"{self._source}: {name} must be a positive number, not {value!r}")
        return float(value)

    def size(self, name: str, default: int | None = None) -> int:
        value = self.number(name, default)
        if value != int(value):
            raise ModelLoadError(f"{self._source}: {name} must be a whole number, not {value!r}")
        return int(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(f"{self._source}: {name} must be true or false, not {value!r}")
        return value


def _architecture(fields: Mapping[str, object]) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelLoadError("config.json: architectures is missing or not a list of names")
    return names[0]


def _refuse_what_is_not_served(fields: Mapping[str, object]) -> None:
    if fields.get("quantization_config") is not None:
        raise ModelLoadError("config.json: quantization_config is set; quantized checkpoints are not served")
    if fields.get("hidden_act", "silu") != "silu":
        raise ModelLoadError(f"config.json: hidden_act {fields['hidden_act']!r} is not served, only 'silu'")
    layer_types = fields.get("layer_types")
    slides = isinstance(layer_types, list) and any(kind != "full_attention" for kind in layer_types)
    if slides or fields.get("use_sliding_window"):
        raise ModelLoadError("config.json: use_sliding_window (or layer_types): only full attention is served")


def _checkpoint_dtype(fields: Mapping[str, object]) -> CheckpointDtype:
    name = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    match name:
        case "bfloat16" | "float16" | "float32":
            return name
        case _:
            raise ModelLoadError(f"config.json: dtype {name!r} is not one of bfloat16, float16, float32")


def _rope(fields: Mapping[str, object], head_dim: int, max_positions: int) -> RopeConfig:
    """From `rope_scaling` beside `rope_theta` (transformers 4) or `rope_parameters` (transformers 5)."""
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    given = fields.get(name) or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise ModelLoadError(f"config.json: {name} must be one flat object")
    source = f"config.json: {name}"
    own = _Fields(given, source)
    top = _Fields(fields, "config.json")
    if own.number("partial_rotary_factor", top.number("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelLoadError(f"{source}: partial_rotary_factor other than 1 is not served")
    theta = own.number("rope_theta", top.number("rope_theta", 10_000.0))
    kind = given.get("rope_type") or given.get("type") or "default"
    trained = top.size("original_max_position_embeddings", own.size("original_max_position_embeddings", max_positions))
    return RopeConfig(theta, head_dim, _scaling(kind, own, given, trained, max_positions, source))


def _scaling(
    kind: object, own: _Fields, given: Mapping[str, object], trained: int, max_positions: int, source: str
) -> RopeScaling | None:
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(own.number("factor"))
        case "dynamic":
            return DynamicScaling(own.number("factor"), max_positions)
        case "llama3":
            return Llama3Scaling(
                own.number("factor"), own.number("low_freq_factor"), own.number("high_freq_factor"), trained
            )
        case "yarn":
            return _yarn(own, given, trained, max_positions)
        case _:
            raise ModelLoadError(
                f"{source}: rope_type {kind!r} is not served; known: default, linear, dynamic, llama3, yarn"
            )


def _yarn(own: _Fields, given: Mapping[str, object], trained: int, max_positions: int) -> YarnScaling:
    factor = own.number("factor", max_positions / trained)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    inferred = magnitude(1.0)
    if given.get("mscale") and given.get("mscale_all_dim"):
        inferred = magnitude(own.number("mscale")) / magnitude(own.number("mscale_all_dim"))
    return YarnScaling(
        factor=factor,
        original_max_positions=trained,
        attention_factor=own.number("attention_factor", inferred),
        beta_fast=own.number("beta_fast", 32.0),
        beta_slow=own.number("beta_slow", 1.0),
        truncate=own.flag("truncate", True),
    )
