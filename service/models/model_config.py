"""A model folder's config.json in our terms. Only this file knows Hugging Face's names for a model's sizes.

Each family of architectures has a function here; rope_scaling.py and sliding_windows.py hold what several families
share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from service.errors import ModelLoadError
from service.layers.activation import Activation
from service.layers.experts_config import ExpertsConfig
from service.layers.rope_config import DynamicScaling, RopeConfig
from service.models.config_fields import ConfigFields, read_json, token_ids
from service.models.expert_fields import parse_experts
from service.models.gemma_config import (
    GEMMA,
    GEMMA_2,
    GEMMA_3,
    GemmaConfig,
    gemma_context,
    gemma_rope,
    gemma_size,
    gemma_windows,
    parse_gemma,
)
from service.models.pooling_config import load_embedder_config
from service.models.quantization import Quantization, parse_quantization
from service.models.rope_scaling import parse_rope
from service.models.sliding_windows import parse_sliding_windows
from service.models.text_part import text_fields

CheckpointDtype = Literal["bfloat16", "float16", "float32"]

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


_ATTENTION_BIASES: Mapping[str, bool] = MappingProxyType(
    {
        "LlamaForCausalLM": False,
        "Qwen3ForCausalLM": False,
        "Qwen3MoeForCausalLM": False,
        "GptOssForCausalLM": True,
        "OlmoeForCausalLM": False,
    }
)
"""The default of `attention_bias`, for the families that read it."""

_COARSE_NORMS = frozenset({"MixtralForCausalLM", "GptOssForCausalLM", "OlmoeForCausalLM", "Phi3ForCausalLM"})
_ROPE_BASES: Mapping[str, float] = MappingProxyType({"MixtralForCausalLM": 1e6, "GptOssForCausalLM": 150_000.0})
"""The default of `rope_theta`, as in transformers."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a decoder-only Transformer. Sizes in elements, lengths in tokens.

    architecture: the name in the registry and in config.json's `architectures`. embedding_size: of a token's embedding.
    If it is not hidden_size, there is a projection before and after the blocks. sliding_windows: per layer, how many
    tokens a query sees, itself included. None: all. activation: of the MLP, gated or plain. norms_first: a block norms
    the inputs of attention and MLP; otherwise the stream after each of them. has_final_norm: the stream is normed once
    more before the output head. rope: None if positions are learned. max_position_embeddings: the model's own context
    length. qkv_bias, output_bias: of attention's projections. mlp_bias: of both of the MLP's. is_merged: a checkpoint
    has query, key and value in one tensor, and gate and up in one. gemma: only for Gemma's families. experts: of the
    layers that have experts instead of an MLP; None: no layer has. checkpoint_dtype: of the weights on disk, by
    config.json; float32 if it does not say. eos_token_ids, bos_token_id: as in config.json; generation_config.json may
    override them. quantization: of the weights; None if all are plain.
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
    is_merged: bool = False
    gemma: GemmaConfig | None = None
    experts: ExpertsConfig | None = None
    quantization: Quantization | None = None

    @property
    def longest_context(self) -> int:
        """The longest context that the position encoding supports: the model's own, or more with dynamic scaling."""
        scaling = None if self.rope is None else self.rope.scaling
        if isinstance(scaling, DynamicScaling):
            return int(scaling.factor * self.max_position_embeddings)
        return self.max_position_embeddings


def load_model_config(folder: Path, quantization: str | None = None) -> ModelConfig:
    """Read config.json. quantization: the setting. Raises ModelLoadError naming the field."""
    return parse_model_config(read_config(folder), quantization)


def read_config(folder: Path) -> Mapping[str, object]:
    """config.json's fields. For an embedding model (pooling_config.py), those of the corresponding generating model,
    with the output head tied to the embedding and never used. Raises ModelLoadError."""
    fields = read_json(folder / "config.json")
    if load_embedder_config(folder) is None:
        return fields
    with_head = architecture_of(fields).removesuffix("Model") + "ForCausalLM"
    named = {"architectures": [with_head]} if with_head in _FAMILIES else {}
    return {**fields, **named, "tie_word_embeddings": True}


def parse_model_config(fields: Mapping[str, object], quantization: str | None = None) -> ModelConfig:
    """config.json's fields, checked; for a model with vision those of its text part. quantization: the setting. Raises
    ModelLoadError naming the field."""
    text = text_fields(fields)
    if text is not None:
        config = parse_model_config(text, quantization)
        quantized = config.quantization
        return config if quantized is None else replace(config, quantization=replace(quantized, is_of_text=True))
    checked = ConfigFields(fields, "config.json")
    architecture = architecture_of(fields)
    if architecture not in _FAMILIES:
        known = ", ".join(_FAMILIES)
        raise ModelLoadError(f"config.json: architecture {architecture!r} is not supported; supported: {known}")
    quantized = quantization_of(architecture, fields, quantization)
    return replace(_FAMILIES[architecture](architecture, checked), quantization=quantized)


def _llama_family(architecture: str, fields: ConfigFields) -> ModelConfig:
    """Llama, Mistral, Phi-3, Qwen2 and Qwen3: rotary positions, grouped queries, RMSNorm, a gated MLP. Mixtral,
    Qwen2-MoE, Qwen3-MoE, OLMoE and gpt-oss: experts instead of the MLP."""
    hidden_size, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    num_heads, num_kv_heads, head_dim = _grouped_heads(architecture, fields)
    activation = _activation(fields, "hidden_act", "silu")
    if activation == "relu":
        raise ModelLoadError("config.json: hidden_act 'relu' is not supported in a gated MLP")
    experts = parse_experts(architecture, fields, num_layers)
    if experts is not None and activation != "silu":
        raise ModelLoadError(f"config.json: hidden_act {activation!r} is not supported with experts, only silu")
    max_positions = fields.size("max_position_embeddings", 2048)
    # For the other families transformers ignores this field.
    biases = architecture in _ATTENTION_BIASES and fields.flag("attention_bias", _ATTENTION_BIASES[architecture])

    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=fields.size("intermediate_size", None if experts is None else experts.intermediate_size),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        sliding_windows=parse_sliding_windows(architecture, fields, num_layers),
        activation=activation,
        norm_eps=fields.number("rms_norm_eps", 1e-5 if architecture in _COARSE_NORMS else 1e-6),
        norms_first=True,
        has_final_norm=True,
        rope=parse_rope(
            fields,
            head_dim,
            max_positions,
            _ROPE_BASES.get(architecture, 10_000.0),
            turns_part=architecture == "Phi3ForCausalLM",
        ),
        max_position_embeddings=max_positions,
        tie_word_embeddings=fields.flag("tie_word_embeddings"),
        qkv_bias=biases
        or architecture == "Qwen2ForCausalLM"
        or (architecture == "Qwen2MoeForCausalLM" and fields.flag("qkv_bias", True)),
        output_bias=biases,
        mlp_bias=architecture == "LlamaForCausalLM" and fields.flag("mlp_bias"),
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=token_ids(fields.get("eos_token_id")),
        bos_token_id=min(token_ids(fields.get("bos_token_id")), default=None),
        is_merged=architecture == "Phi3ForCausalLM",
        experts=experts,
    )


def _gemma(architecture: str, fields: ConfigFields) -> ModelConfig:
    hidden_size, num_layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    num_heads = gemma_size(architecture, fields, "num_attention_heads")
    num_kv_heads = gemma_size(architecture, fields, "num_key_value_heads")
    head_dim = gemma_size(architecture, fields, "head_dim")
    max_positions = gemma_context(architecture, fields)
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    # Early config files of Gemma say gelu and mean its tanh approximation.
    named = "hidden_activation" if fields.get("hidden_activation") is not None else "hidden_act"
    activation = _activation(fields, named, "gelu_pytorch_tanh")
    bias = fields.flag("attention_bias")
    return ModelConfig(
        architecture=architecture,
        vocab_size=gemma_size(architecture, fields, "vocab_size"),
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        sliding_windows=gemma_windows(architecture, fields, num_layers),
        activation="gelu_tanh" if architecture == GEMMA and activation == "gelu" else activation,
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        norms_first=True,
        has_final_norm=True,
        rope=gemma_rope(architecture, fields, head_dim, max_positions),
        max_position_embeddings=max_positions,
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=False,
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=_special_ids(fields, "eos_token_id", 1),
        bos_token_id=min(_special_ids(fields, "bos_token_id", 2), default=None),
        gemma=parse_gemma(architecture, fields, head_dim),
    )


def _grouped_heads(architecture: str, fields: ConfigFields) -> tuple[int, int, int]:
    """Query heads, KV heads (each shared by a group of query heads), and the head dim, which
    rotary embedding rotates."""
    num_heads = fields.size("num_attention_heads")
    num_kv_heads = fields.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise ModelLoadError(
            f"config.json: num_attention_heads {num_heads} is not a multiple of num_key_value_heads {num_kv_heads}"
        )
    share = max(1, fields.size("hidden_size") // num_heads)
    default = {"Qwen3ForCausalLM": 128, "GptOssForCausalLM": 64}.get(architecture, share)
    head_dim = fields.size("head_dim", default)
    if head_dim % 2:
        raise ModelLoadError(f"config.json: head_dim {head_dim} is odd; rotary embedding rotates pairs of dims")
    return num_heads, num_kv_heads, head_dim


def _opt(architecture: str, fields: ConfigFields) -> ModelConfig:
    hidden_size, num_heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    norms_first, has_biases = fields.flag("do_layer_norm_before", True), fields.flag("enable_bias", True)
    fields.require("layer_norm_elementwise_affine", True)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=fields.size("word_embed_proj_dim", hidden_size),
        intermediate_size=fields.size("ffn_dim"),
        num_layers=fields.size("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=_even_share("hidden_size", hidden_size, "num_attention_heads", num_heads),
        sliding_windows=(None,) * fields.size("num_hidden_layers"),
        activation=_activation(fields, "activation_function", "relu"),
        norm_eps=1e-5,
        norms_first=norms_first,
        has_final_norm=norms_first and not fields.flag("_remove_final_layer_norm"),
        rope=None,
        max_position_embeddings=fields.size("max_position_embeddings", 2048),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=has_biases,
        output_bias=has_biases,
        mlp_bias=has_biases,
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=_special_ids(fields, "eos_token_id", 2),
        bos_token_id=min(_special_ids(fields, "bos_token_id", 2), default=None),
    )


def _gpt2(architecture: str, fields: ConfigFields) -> ModelConfig:
    hidden_size, num_heads = fields.size("n_embd"), fields.size("n_head")
    fields.require("scale_attn_weights", True)
    fields.require("scale_attn_by_inverse_layer_idx", False)
    fields.require("add_cross_attention", False)
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.size("vocab_size"),
        hidden_size=hidden_size,
        embedding_size=hidden_size,
        intermediate_size=fields.size("n_inner", 4 * hidden_size),
        num_layers=fields.size("n_layer"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=_even_share("n_embd", hidden_size, "n_head", num_heads),
        sliding_windows=(None,) * fields.size("n_layer"),
        activation=_activation(fields, "activation_function", "gelu_new"),
        norm_eps=fields.number("layer_norm_epsilon", 1e-5),
        norms_first=True,
        has_final_norm=True,
        rope=None,
        max_position_embeddings=fields.size("n_positions", 1024),
        tie_word_embeddings=fields.flag("tie_word_embeddings", True),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        checkpoint_dtype=_checkpoint_dtype(fields),
        eos_token_ids=_special_ids(fields, "eos_token_id", 50256),
        bos_token_id=min(_special_ids(fields, "bos_token_id", 50256), default=None),
    )


_FAMILIES: Mapping[str, Callable[[str, ConfigFields], ModelConfig]] = MappingProxyType(
    {
        "LlamaForCausalLM": _llama_family,
        "MistralForCausalLM": _llama_family,
        "Qwen2ForCausalLM": _llama_family,
        "Qwen3ForCausalLM": _llama_family,
        "MixtralForCausalLM": _llama_family,
        "Qwen2MoeForCausalLM": _llama_family,
        "Qwen3MoeForCausalLM": _llama_family,
        "GptOssForCausalLM": _llama_family,
        "OlmoeForCausalLM": _llama_family,
        "Phi3ForCausalLM": _llama_family,
        GEMMA: _gemma,
        GEMMA_2: _gemma,
        GEMMA_3: _gemma,
        "OPTForCausalLM": _opt,
        "GPT2LMHeadModel": _gpt2,
    }
)


def is_native(architecture: str) -> bool:
    """Whether we have our own file for it."""
    return architecture in _FAMILIES


def quantization_of(architecture: str, fields: Mapping[str, object], requested: str | None) -> Quantization | None:
    """`parse_quantization`, except for gpt-oss's own format, which quantizes only experts and is read by
    expert_fields.py."""
    written = fields.get("quantization_config")
    method = written.get("quant_method") if isinstance(written, dict) else None
    if architecture == "GptOssForCausalLM" and method == "mxfp4":
        return parse_quantization({}, requested)
    return parse_quantization(fields, requested)


def architecture_of(fields: Mapping[str, object]) -> str:
    """The architecture's name in config.json. Raises ModelLoadError if there is none."""
    names = fields.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ModelLoadError("config.json: architectures is missing or not a list of names")
    return names[0]


def _special_ids(fields: ConfigFields, name: str, default: int) -> frozenset[int]:
    """The default applies if the field is missing; null means none."""
    return token_ids(fields.get(name)) if name in fields else frozenset({default})


def _activation(fields: ConfigFields, name: str, default: str) -> Activation:
    written = fields.get(name) or default
    activation = _ACTIVATIONS.get(written) if isinstance(written, str) else None
    if activation is None:
        raise ModelLoadError(f"config.json: {name} {written!r} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return activation


def _even_share(whole_name: str, whole: int, parts_name: str, parts: int) -> int:
    if whole % parts:
        raise ModelLoadError(f"config.json: {whole_name} {whole} is not a multiple of {parts_name} {parts}")
    return whole // parts


def _checkpoint_dtype(fields: ConfigFields) -> CheckpointDtype:
    name = fields.get("dtype") or fields.get("torch_dtype") or "float32"
    match name:
        case "bfloat16" | "float16" | "float32":
            return name
        case _:
            raise ModelLoadError(f"config.json: dtype {name!r} is not one of bfloat16, float16, float32")
