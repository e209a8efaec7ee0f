"""Which weights are quantized, and how: by a setting, or by config.json's quantization_config. Imports no torch: a
checkpoint that is not supported is refused before torch is loaded.

Supported are the formats of compressed-tensors (llm-compressor), the fp8 of Hugging Face and AutoFP8, AutoAWQ, AutoGPTQ
and GPTQModel, AutoRound, which packs like AWQ or GPTQ, and bitsandbytes. Only this file knows the names of their
fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from service.errors import ConfigError, ModelLoadError
from service.models.text_part import names_in_whole

_SOURCE = "config.json: quantization_config"
WHAT_TO_DO = "serve the unquantized checkpoint, with --quantization fp8 to save memory"
A_WORD = 8
"""Int4 elements per stored word."""
INT8, INT8_IN_A_WORD = "int8", 4
"""The form's name, and int8 elements per stored word."""
_CHUNK = 32
"""Smallest number of input features that int4 elements are packed by (kernels/quantized_weight.py)."""


@dataclass(frozen=True, slots=True)
class Fp8Scheme:
    """e4m3. scales: "load": one per output channel, made from plain weights at load. Read from the checkpoint:
    "channel": one per output channel; "tensor": one; "block": one per block of `block` (output, input) features."""

    scales: Literal["load", "channel", "tensor", "block"]
    block: tuple[int, int] = (1, 1)
    scale_name: str = "weight_scale"


@dataclass(frozen=True, slots=True)
class Int4Scheme:
    """layout: of the elements in the checkpoint. group_size: input features that share a scale; None: all. has_zeros:
    zero points are stored, else they are 8. zero_offset: added to the stored ones."""

    layout: Literal["awq", "gptq", "packed"]
    group_size: int | None
    has_zeros: bool
    zero_offset: int = 0

    @property
    def tensor_names(self) -> tuple[str, str, str]:
        """Suffixes to a linear's name: of elements, zeros and scales."""
        if self.layout == "packed":
            return "weight_packed", "weight_zero_point", "weight_scale"
        return "qweight", "qzeros", "scales"


@dataclass(frozen=True, slots=True)
class Int8Scheme:
    """Symmetric. layout: of the elements in the checkpoint. group_size: input features that share a scale; None: all.
    is_of_tensor: the whole tensor shares one."""

    layout: Literal["bytes", "packed", "gptq"]
    group_size: int | None = None
    is_of_tensor: bool = False

    @property
    def tensor_names(self) -> tuple[str, str]:
        """Suffixes to a linear's name: of elements and scales."""
        if self.layout == "gptq":
            return "qweight", "scales"
        return "weight" if self.layout == "bytes" else "weight_packed", "weight_scale"


Scheme = Fp8Scheme | Int4Scheme | Int8Scheme


@dataclass(frozen=True, slots=True)
class Quantization:
    """name: for the log and the model list. groups: (targets, scheme); a linear gets the first scheme whose targets
    match it. ignored: targets that stay plain. A target is a linear's name, a part of it that ends at a dot, `re:` and
    a pattern that matches its beginning, or Linear for all. is_of_text: the checkpoint is a model with vision, and
    targets may name the text part's linears by their place in the whole model. is_dequantized_at_load: weights become
    plain while they are read (bitsandbytes_weights.py); the stored tensors tell which are quantized, so there are no
    groups."""

    name: str
    groups: tuple[tuple[tuple[str, ...], Scheme], ...]
    ignored: tuple[str, ...] = ()
    is_of_text: bool = False
    is_dequantized_at_load: bool = False

    def scheme_of(self, linear: str) -> Scheme | None:
        """The scheme of a linear, by its name in the checkpoint or in the text part's own;
        None: it is not quantized."""
        if self._is_among(self.ignored, linear):
            return None
        return next((scheme for targets, scheme in self.groups if self._is_among(targets, linear)), None)

    def _is_among(self, targets: Sequence[str], linear: str) -> bool:
        names = (linear, *names_in_whole(linear)) if self.is_of_text else (linear,)
        return any(_matches(name, target) for target in targets for name in names)

    @property
    def is_at_load(self) -> bool:
        return any(isinstance(scheme, Fp8Scheme) and scheme.scales == "load" for _, scheme in self.groups)


_AUTO_ROUND_FACTS = frozenset(
    {"autoround_version", "provider", "data_type", "sym", "enable_quanted_input", "to_quant_block_names"}
    | {"block_name_to_quantize", "static_attention_granularity", "static_kv_granularity", "iters", "lr", "nsamples"}
    | {"seqlen", "batch_size", "gradient_accumulate_steps", "enable_minmax_tuning", "enable_norm_bias_tuning"}
    | {"minmax_lr", "low_gpu_mem_usage", "dataset", "scale_dtype", "amp", "model_dtype", "super_bits"}
)
"""How AutoRound calibrated, and the elements' type, which is checked separately."""

FP8_AT_LOAD = Quantization("fp8", ((("Linear",), Fp8Scheme("load")),), ("lm_head",))
"""fp8 made from plain weights, by the setting. The head stays plain, as in published checkpoints, because it affects
quality the most."""


def check_trains(quantization: Quantization | None) -> None:
    """Raises ConfigError if adapters cannot be trained beside weights of this form."""
    if quantization is not None and not quantization.is_dequantized_at_load:
        raise ConfigError(
            f"fine-tuning: the weights are quantized ({quantization.name}), but training needs unquantized ones;"
            " serve the unquantized checkpoint, without --quantization"
        )


def parse_quantization(fields: Mapping[str, object], requested: str | None) -> Quantization | None:
    """From config.json's fields and the setting `quantization`. None: plain weights. Raises ModelLoadError."""
    written = fields.get("quantization_config")
    if written is None:
        for name in ("compression_config", "quantization"):
            if fields.get(name) is not None:
                raise ModelLoadError(f"config.json: {name} is not supported; {WHAT_TO_DO}")
        return FP8_AT_LOAD if requested == "fp8" else None
    if not isinstance(written, dict):
        raise ModelLoadError(f"{_SOURCE} is not a JSON object")
    method = written.get("quant_method")
    parse = _METHODS.get(method) if isinstance(method, str) else None
    if parse is None:
        raise ModelLoadError(
            f"{_SOURCE}.quant_method {method!r} is not supported; supported: {', '.join(_METHODS)}; {WHAT_TO_DO}"
        )
    quantization = parse(written)
    if requested is not None and not quantization.name.endswith(requested):
        raise ModelLoadError(
            f"quantization: {requested} is for unquantized weights; this checkpoint is {quantization.name} already:"
            " leave the setting out"
        )
    return quantization


def _compressed_tensors(written: Mapping[str, object]) -> Quantization:
    _refuse_unknown(
        written,
        known={"quant_method", "config_groups", "ignore", "format", "kv_cache_scheme"},
        facts={"quantization_status", "global_compression_ratio", "version", "run_compressed"},
    )
    for name in ("sparsity_config", "transform_config"):
        value = written.get(name)
        if value and value != {"format": "dense"}:
            raise _refused(name, value)
    groups = written.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ModelLoadError(f"{_SOURCE}.config_groups is missing or not a JSON object")
    parsed = [_compressed_group(name, group, written.get("format")) for name, group in groups.items()]
    formats = {{Fp8Scheme: "fp8", Int8Scheme: INT8}.get(type(scheme), "int4") for _, scheme in parsed}
    return Quantization(f"compressed-tensors {' and '.join(sorted(formats))}", tuple(parsed), _names(written, "ignore"))


def _compressed_group(name: str, group: object, of_all: object) -> tuple[tuple[str, ...], Scheme]:
    place = f"config_groups.{name}"
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        raise ModelLoadError(f"{_SOURCE}.{place}.weights is missing or not a JSON object")
    _refuse_unknown(group, {"targets", "weights", "input_activations"}, {"format"}, f"{place}.")
    weights, inputs = group["weights"], group.get("input_activations")
    kind, bits, strategy = weights.get("type"), weights.get("num_bits"), weights.get("strategy")
    _refuse_unknown(
        weights,
        {"type", "num_bits", "strategy", "symmetric", "group_size", "block_structure", "dynamic", "actorder"},
        {"observer", "observer_kwargs", "scale_dtype", "zp_dtype", "is_asymmetric"},
        f"{place}.weights.",
    )
    if weights.get("dynamic"):
        raise _refused(f"{place}.weights.dynamic", True)
    if weights.get("actorder") not in (None, False, "static", "weight"):
        raise _refused(f"{place}.weights.actorder", weights["actorder"])
    targets = _names(group, "targets", ("Linear",))
    if kind == "float" and bits == 8:
        _check_fp8_inputs(place, inputs)
        return targets, _compressed_fp8(place, weights, strategy)
    if kind == "int" and bits == 4 and strategy in ("group", "channel"):
        if inputs is not None:
            raise _refused(f"{place}.input_activations", inputs)
        group_size = _group_size(weights.get("group_size")) if strategy == "group" else None
        return targets, Int4Scheme("packed", group_size, has_zeros=weights.get("symmetric") is False)
    if kind == "int" and bits == 8:
        return targets, _compressed_int8(place, weights, inputs, group.get("format") or of_all)
    raise _refused(f"{place}.weights", {"type": kind, "num_bits": bits, "strategy": strategy})


def _compressed_int8(place: str, weights: Mapping[str, object], inputs: object, form: object) -> Int8Scheme:
    """Whatever scales and zeros activations have: ours stay in 16 bits."""
    layouts: Mapping[object, Literal["bytes", "packed"]] = {
        "int-quantized": "bytes",
        "naive-quantized": "bytes",
        "pack-quantized": "packed",
    }
    if not isinstance(form, str) or form not in layouts:
        raise _refused("format", form)
    if weights.get("symmetric") is False:
        raise ModelLoadError(
            f"{_SOURCE}.{place}.weights.symmetric false is not supported: int8 weights with zeros are not read;"
            f" {WHAT_TO_DO}"
        )
    if inputs is not None and not (
        isinstance(inputs, dict) and inputs.get("type") == "int" and inputs.get("num_bits") == 8
    ):
        raise _refused(f"{place}.input_activations", inputs)
    match weights.get("strategy"):
        case "group":
            return Int8Scheme(layouts[form], _group_size(weights.get("group_size")))
        case "channel":
            return Int8Scheme(layouts[form])
        case "tensor":
            return Int8Scheme(layouts[form], is_of_tensor=True)
        case other:
            raise _refused(f"{place}.weights.strategy", other)


def _compressed_fp8(place: str, weights: Mapping[str, object], strategy: object) -> Fp8Scheme:
    if weights.get("symmetric") is False:
        raise _refused(f"{place}.weights.symmetric", False)
    match strategy:
        case "channel" | "tensor":
            return Fp8Scheme(strategy)
        case "block":
            return Fp8Scheme("block", _block(f"{place}.weights.block_structure", weights.get("block_structure")))
        case _:
            raise _refused(f"{place}.weights.strategy", strategy)


def _check_fp8_inputs(place: str, inputs: object) -> None:
    """The input scales that it asks for are not used: ours are better (kernels/quantized_linear.py)."""
    if inputs is None:
        return
    if not isinstance(inputs, dict) or inputs.get("type") != "float" or inputs.get("num_bits") != 8:
        raise _refused(f"{place}.input_activations", inputs)


def _fp8(written: Mapping[str, object]) -> Quantization:
    _refuse_unknown(
        written,
        known={"quant_method", "weight_block_size", "modules_to_not_convert", "ignored_layers", "activation_scheme"},
        facts={"fmt", "scale_fmt", "kv_cache_scheme", "dequantize"},
    )
    if written.get("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise _refused("fmt", written["fmt"])
    if written.get("activation_scheme", "dynamic") not in ("dynamic", "static"):
        raise _refused("activation_scheme", written["activation_scheme"])
    ignored = (*_names(written, "modules_to_not_convert"), *_names(written, "ignored_layers"), "lm_head")
    if written.get("weight_block_size") is None:
        return Quantization("fp8", ((("Linear",), Fp8Scheme("tensor")),), ignored)
    scheme = Fp8Scheme("block", _block("weight_block_size", written["weight_block_size"]), "weight_scale_inv")
    return Quantization("block fp8", ((("Linear",), scheme),), ignored)


def _awq(written: Mapping[str, object]) -> Quantization:
    _refuse_unknown(
        written,
        known={"quant_method", "bits", "group_size", "zero_point", "version", "modules_to_not_convert", "backend"},
        facts={"do_fuse", "fuse_max_seq_len", "modules_to_fuse", "exllama_config", "format"} | _AUTO_ROUND_FACTS,
    )
    _require(written, "bits", 4)
    _require(written, "data_type", "int")
    _require(written, "zero_point", True)
    if str(written.get("version", "gemm")).lower() != "gemm":
        raise _refused("version", written["version"])
    scheme = Int4Scheme("awq", _group_size(written.get("group_size", 128)), has_zeros=True)
    return Quantization("awq int4", ((("Linear",), scheme),), (*_names(written, "modules_to_not_convert"), "lm_head"))


def _gptq(written: Mapping[str, object]) -> Quantization:
    _refuse_unknown(
        written,
        known={"quant_method", "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "lm_head"}
        | {"pack_dtype", "dynamic", "act_group_aware"},
        facts={"damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "meta", "quantizer", "uri"}
        | {"model_name_or_path", "model_file_base_name", "dataset", "tokenizer", "batch_size", "pad_token_id"}
        | {"exllama_config", "use_exllama", "disable_exllama", "use_cuda_fp16", "cache_block_outputs", "mse"}
        | {"max_input_length", "model_seqlen", "block_name_to_quantize", "module_name_preceding_first_block"}
        | {"modules_in_block_to_quantize", "is_marlin_format", "backend", "method", "hessian", "offload_to_disk"}
        | _AUTO_ROUND_FACTS,
    )
    is_int8 = written.get("bits") == 8
    _require(written, "bits", 8 if is_int8 else 4)
    _require(written, "data_type", "int")
    _require(written, "lm_head", False)
    _require(written, "pack_dtype", "int32")
    if written.get("desc_act"):
        raise ModelLoadError(
            f"{_SOURCE}.desc_act true is not supported: a group's features are not adjacent; use a checkpoint with"
            " desc_act false"
        )
    version = written.get("checkpoint_format") or written.get("format") or "gptq"
    if version not in ("gptq", "gptq_v2"):
        raise _refused("checkpoint_format", version)
    ignored = (*_left_plain(written), "lm_head")
    if is_int8:
        _require(written, "sym", True)  # then every zero is 128, and is not read
        scheme8 = Int8Scheme("gptq", _group_size(written.get("group_size", 128)))
        return Quantization(f"gptq {INT8}", ((("Linear",), scheme8),), ignored)
    offset = 1 if version == "gptq" else 0
    scheme = Int4Scheme("gptq", _group_size(written.get("group_size", 128)), has_zeros=True, zero_offset=offset)
    return Quantization("gptq int4", ((("Linear",), scheme),), ignored)


def _left_plain(written: Mapping[str, object]) -> Sequence[str]:
    """GPTQModel's per-module rules: only those that leave modules plain (routers, say) are supported; others are
    refused."""
    rules = written.get("dynamic") or {}
    if not isinstance(rules, dict) or any(not name.startswith("-:") or how for name, how in rules.items()):
        raise _refused("dynamic", rules)
    return _names({"dynamic": ["re:" + name.removeprefix("-:") for name in rules]}, "dynamic")


def _auto_round(written: Mapping[str, object]) -> Quantization:
    _refuse_unknown(
        written,
        known={"quant_method", "packing_format", "bits", "group_size", "extra_config"},
        facts=_AUTO_ROUND_FACTS | {"backend"},
    )
    _require(written, "bits", 4)
    _require(written, "data_type", "int")
    layouts: Mapping[object, Literal["awq", "gptq"]] = {"auto_round:auto_gptq": "gptq", "auto_round:auto_awq": "awq"}
    packing = written.get("packing_format")
    if not isinstance(packing, str) or packing not in layouts:
        raise _refused("packing_format", packing)
    rules = written.get("extra_config") or {}
    if not isinstance(rules, dict) or any(not isinstance(how, dict) or how.get("bits") != 16 for how in rules.values()):
        raise _refused("extra_config", rules)
    layout = layouts[packing]
    group_size = _group_size(written.get("group_size", 128))
    scheme = Int4Scheme(layout, group_size, has_zeros=True, zero_offset=1 if layout == "gptq" else 0)
    return Quantization(f"auto-round int4, as {layout}", ((("Linear",), scheme),), (*rules, "lm_head"))


def is_bitsandbytes(fields: Mapping[str, object]) -> bool:
    """Whether config.json with these fields describes a checkpoint of bitsandbytes."""
    written = fields.get("quantization_config")
    return isinstance(written, dict) and written.get("quant_method") == _BITSANDBYTES


def _bitsandbytes(written: Mapping[str, object]) -> Quantization:
    """The facts are what bitsandbytes' own products go by, and what each stored tensor tells, too."""
    _refuse_unknown(
        written,
        known={"quant_method", "load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "llm_int8_has_fp16_weight"},
        facts={"_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"}
        | {"bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_skip_modules"}
        | {"llm_int8_threshold"},
    )
    _require(written, "llm_int8_has_fp16_weight", False)
    is_4_bit, is_8_bit = (written.get(f"load_in_{bits}bit") is True for bits in (4, 8))
    if is_4_bit is is_8_bit:
        raise ModelLoadError(f"{_SOURCE}: one of load_in_4bit and load_in_8bit must be true; {WHAT_TO_DO}")
    kind = written.get("bnb_4bit_quant_type", "fp4") if is_4_bit else "int8"
    if is_4_bit and kind not in ("nf4", "fp4"):
        raise _refused("bnb_4bit_quant_type", kind)
    return Quantization(f"bitsandbytes {kind}", (), is_dequantized_at_load=True)


_BITSANDBYTES = "bitsandbytes"
_METHODS: Mapping[str, Callable[[Mapping[str, object]], Quantization]] = MappingProxyType(
    {"compressed-tensors": _compressed_tensors, "fp8": _fp8, "awq": _awq, "gptq": _gptq, "auto-round": _auto_round}
    | {_BITSANDBYTES: _bitsandbytes}
)


def _matches(linear: str, target: str) -> bool:
    if target.startswith("re:"):
        return re.match(target[3:], linear) is not None
    return target == "Linear" or f".{target}." in f".{linear}."


def _refuse_unknown(
    written: Mapping[str, object], known: AbstractSet[str], facts: AbstractSet[str], place: str = ""
) -> None:
    """Refuse unknown fields with a value. facts: fields that only tell how the checkpoint was made."""
    for name, value in written.items():
        means_nothing = value is None or value is False or value in ("", [], {})
        if name not in known | facts | {"sparsity_config", "transform_config"} and not means_nothing:
            raise _refused(f"{place}{name}", value)


def _refused(name: str, value: object) -> ModelLoadError:
    shown = repr(value)
    return ModelLoadError(f"config.json: quantization_config.{name} {shown[:120]} is not supported; {WHAT_TO_DO}")


def _require(written: Mapping[str, object], name: str, value: object) -> None:
    """The supported value is also the field's default."""
    if written.get(name, value) not in (value, None):
        raise _refused(name, written[name])


def _names(written: Mapping[str, object], name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    value = written.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ModelLoadError(f"{_SOURCE}.{name} is not a list of names")
    for target in (each for each in value if each.startswith("re:")):
        try:
            re.compile(target[3:])
        except re.error as fault:
            raise ModelLoadError(f"{_SOURCE}.{name}: {target!r} is not a valid regular expression: {fault}") from None
    return tuple(value)


def _group_size(value: object) -> int | None:
    if value == -1 or value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < _CHUNK or value & (value - 1):
        raise ModelLoadError(
            f"{_SOURCE}.group_size {value!r} is not supported, only powers of two from {_CHUNK}, or -1; {WHAT_TO_DO}"
        )
    return value


def _block(name: str, value: object) -> tuple[int, int]:
    match value:
        case [int(rows), int(size)] if rows > 0 and size >= 16 and size & (size - 1) == 0:
            return rows, size
        case _:
            raise _refused(name, value)
