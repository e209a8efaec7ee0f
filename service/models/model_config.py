"""What a model folder's config.json says, in our words: the only place that knows Hugging Face's spellings."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from service.errors import ModelLoadError
from service.layers.mlp import Activation
from service.layers.rotary import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

CheckpointDtype = Literal["bfloat16", "float16", "float32"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "silu": "silu",
        "swish": "silu",
        "relu": "relu",
        "gelu": "gelu",
        "gelu_new": "gelu_tanh",
        "gelu_fast": "gelu_tanh",
        "gelu_pytorch_tanh": "gelu_tanh",
    }
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only Transformer's shape. Sizes in elements, lengths in tokens.

    architecture: the name that the registry knows, as in config.json's `architectures`.
    embedding_size: of a token's embedding; other than hidden_size, a projection stands on either side of the blocks.
    sliding_windows: one a layer; how many tokens a query sees, its own included. None: all.
    activation: of the MLP, gated or plain.
    norms_first: a block norms what goes into attention and MLP; else what comes out, on the stream itself.
    has_final_norm: the stream is normed once more before the output head.
    rope: None where positions are learned.
    max_position_embeddings: the model's own context length.
    qkv_bias, output_bias: of attention's projections. mlp_bias: of both of the MLP's.
    checkpoint_dtype: of the weights on disk, by config.json; float32 if it does not say.
    eos_token_ids, bos_token_id: as config.json has them; generation_config.json may say otherwise.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    embedding_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_windows: tuple[int | None, ...]
    activation: Activation
    norm_eps: float
    norms_first: bool
    has_final_norm: bool
    rope: RopeConfig | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    checkpoint_dtype: CheckpointDtype
    eos_token_ids: frozenset[int]
    bos_token_id: int | None

    @property
    def longest_context(self) -> int:
        """The longest context that the position encoding reaches: the model's own, or more with dynamic scaling."""
        scaling = None if self.rope is None else self.rope.scaling
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
    if fields.get("quantization_config") is not None:
        raise ModelLoadError("config.json: quantization_config is set; quantized checkpoints are not served")
    return _FAMILIES[architecture](architecture, fields, reader)


def _llama_family(architecture: str, fields: Mapping[str, object], reader: _Fields) -> ModelConfig:
    """Llama, Mistral, Qwen2 and Qwen3: rotary positions, grouped queries, RMSNorm, a gated MLP."""
    hidden_size, num_layers = reader.size("hidden_size"), reader.size("num_hidden_layers")
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
    activation = reader.activation("hidden_act", "silu")
    if activation == "relu":
        raise ModelLoadError("config.json: hidden_act 'relu' is not served in a gated MLP")
    max_positions = reader.size("max_position_embeddings", 2048)
    # Of Mistral and Qwen2, transformers reads no such field.
    biases = architecture in {"LlamaForCausalLM", "Qwen3ForCausalLM"} and reader.flag("attention_bias")

    return ModelConfig(
        architecture=architecture,
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=reader.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        sliding_windows=_sliding_windows(architecture, fields, reader, num_layers),
        activation=activation,
        norm_eps=reader.number("rms_norm_eps", 1e-6),
        norms_first=True,
        has_final_norm=True,
        rope=_rope(fields, head_dim, max_positions),
        max_position_embeddings=max_positions,
        tie_word_embeddings=reader.flag("tie_word_embeddings"),
        qkv_bias=biases or architecture == "Qwen2ForCausalLM",
        output_bias=biases,
        mlp_bias=architecture == "LlamaForCausalLM" and reader.flag("mlp_bias"),
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=token_ids(fields.get("eos_token_id")),
        bos_token_id=min(token_ids(fields.get("bos_token_id")), default=None),
    )


def _opt(architecture: str, fields: Mapping[str, object], reader: _Fields) -> ModelConfig:
    hidden_size, num_heads = reader.size("hidden_size"), reader.size("num_attention_heads")
    norms_first, has_biases = reader.flag("do_layer_norm_before", True), reader.flag("enable_bias", True)
    reader.require("layer_norm_elementwise_affine", True)
    return ModelConfig(
        architecture=architecture,
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=reader.size("word_embed_proj_dim", hidden_size),
        intermediate_size=reader.size("ffn_dim"),
        num_layers=reader.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=_even_share("hidden_size", hidden_size, "num_attention_heads", num_heads),
        sliding_windows=(None,) * reader.size("num_hidden_layers"),
        activation=reader.activation("activation_function", "relu"),
        norm_eps=1e-5,
        norms_first=norms_first,
        has_final_norm=norms_first and not reader.flag("_remove_final_layer_norm"),
        rope=None,
        max_position_embeddings=reader.size("max_position_embeddings", 2048),
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        qkv_bias=has_biases,
        output_bias=has_biases,
        mlp_bias=has_biases,
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=token_ids(fields.get("eos_token_id", 2)),
        bos_token_id=min(token_ids(fields.get("bos_token_id", 2)), default=None),
    )


def _gpt2(architecture: str, fields: Mapping[str, object], reader: _Fields) -> ModelConfig:
    hidden_size, num_heads = reader.size("n_embd"), reader.size("n_head")
    reader.require("scale_attn_weights", True)
    reader.require("scale_attn_by_inverse_layer_idx", False)
    reader.require("add_cross_attention", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=reader.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=reader.size("n_inner", 4 * hidden_size),
        num_layers=reader.size("n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=_even_share("n_embd", hidden_size, "n_head", num_heads),
        sliding_windows=(None,) * reader.size("n_layer"),
        activation=reader.activation("activation_function", "gelu_new"),
        norm_eps=reader.number("layer_norm_epsilon", 1e-5),
        norms_first=True,
        has_final_norm=True,
        rope=None,
        max_position_embeddings=reader.size("n_positions", 1024),
        tie_word_embeddings=reader.flag("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=token_ids(fields.get("eos_token_id", 50256)),
        bos_token_id=min(token_ids(fields.get("bos_token_id", 50256)), default=None),
    )


_FAMILIES: Mapping[str, Callable[[str, Mapping[str, object], _Fields], ModelConfig]] = MappingProxyType(
    {
        "LlamaForCausalLM": _llama_family,
        "MistralForCausalLM": _llama_family,
        "Qwen2ForCausalLM": _llama_family,
        "Qwen3ForCausalLM": _llama_family,
        "OPTForCausalLM": _opt,
        "GPT2LMHeadModel": _gpt2,
    }
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

    def count(self, name: str, default: int) -> int:
        """As `size`, but may be 0."""
        return 0 if self._fields.get(name) == 0 else self.size(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelLoadError(f"{self._source}: {name} must be true or false, not {value!r}")
        return value

    def require(self, name: str, served: bool) -> None:
        """Refuse any value of a flag but the one that is served, which is also its default."""
        if self.flag(name, served) is not served:
            raise ModelLoadError(f"{self._source}: {name} {self._fields[name]!r} is not served, only {served}")

    def activation(self, name: str, default: str) -> Activation:
        written = self._fields.get(name) or default
        activation = _ACTIVATIONS.get(written) if isinstance(written, str) else None
        if activation is None:
            raise ModelLoadError(f"{self._source}: {name} {written!r} is not served; known: {', '.join(_ACTIVATIONS)}")
        return activation


def _architecture(fields: Mapping[str, object]) -> str:
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelLoadError("config.json: architectures is missing or not a list of names")
    if names[0] not in _FAMILIES:
        raise ModelLoadError(f"config.json: architecture {names[0]!r} is not served; known: {', '.join(_FAMILIES)}")
    return names[0]


def _even_share(whole_name: str, whole: int, parts_name: str, parts: int) -> int:
    if whole % parts:
        raise ModelLoadError(f"config.json: {whole_name} {whole} is no multiple of {parts_name} {parts}")
    return whole // parts


def _sliding_windows(
    architecture: str, fields: Mapping[str, object], reader: _Fields, num_layers: int
) -> tuple[int | None, ...]:
    """Mistral: every layer, of 4096 tokens unless the file says otherwise (null for none). Qwen2 and Qwen3: from
    layer `max_window_layers` on, if `use_sliding_window`. `layer_types`, where written, names each layer's kind.
    """
    window, first_layer = None, 0
    if architecture == "MistralForCausalLM":
        is_written = "sliding_window" in fields
        window = None if is_written and fields["sliding_window"] is None else reader.size("sliding_window", 4096)
    elif architecture in {"Qwen2ForCausalLM", "Qwen3ForCausalLM"}:
        if reader.flag("use_sliding_window"):
            window, first_layer = reader.size("sliding_window", 4096), reader.count("max_window_layers", 28)
    else:
        reader.require("use_sliding_window", False)
    windows = (None,) * min(first_layer, num_layers) + (window,) * max(0, num_layers - first_layer)
    kinds = fields.get("layer_types")
    if kinds is None:
        return windows
    known = [kind for kind in kinds if kind in (_FULL, _SLIDING)] if isinstance(kinds, list) else []
    if known != kinds or len(known) != num_layers:
        raise ModelLoadError(f"config.json: layer_types must name {_FULL!r} or {_SLIDING!r} for each layer")
    if _SLIDING in known and window is None:
        raise ModelLoadError(f"config.json: layer_types has {_SLIDING!r}, but no sliding_window is in use")
    return tuple(window if kind == _SLIDING else None for kind in known)


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
