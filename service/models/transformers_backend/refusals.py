"""What transformers' modules compute but we would compute wrongly: refused by name, before any weight is read.

Here a sequence has no memory except attention over the paged cache. A layer that keeps anything else (a state, a
convolution's last inputs), or sees tokens other than the previous ones, would give wrong text without any error.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from service.errors import ModelLoadError
from service.models.transformers_backend.attention import AttentionCall

_MOST_HEAD_DIM = 256
_KINDS_OF_LAYERS = {"full_attention", "sliding_attention"}
_CHANGING_ROPES = {"dynamic", "longrope"}
_HARMLESS_ARGUMENTS = {"dropout", "position_ids", "use_cache", "cache_position", "output_attentions", "is_causal"}


def check_config(config: PreTrainedConfig) -> None:
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder:
        raise _refused(config, "it is an encoder-decoder model; only decoders are supported")
    kinds = sorted(set(getattr(text, "layer_types", None) or ()) - _KINDS_OF_LAYERS)
    if kinds:
        raise _refused(config, f"its layers of kind {', '.join(kinds)} do not keep keys and values of all tokens")
    for rope in _ropes(text):
        if rope.get("rope_type") in _CHANGING_ROPES:
            raise _refused(config, f"its rope_type {rope['rope_type']!r} makes rotation depend on other sequences")


def check_modules(model: PreTrainedModel) -> None:
    """For a configuration that passes `check_config`: if it names its layers' kinds, all of them are attention. So a
    hybrid class is supported if its checkpoint has no other layers (Granite 4 Micro)."""
    name = type(model).__name__
    if model._is_stateful and not getattr(model.config.get_text_config(), "layer_types", None):
        raise ModelLoadError(f"config.json: {name} is not supported: its layers keep a state besides keys and values")
    for path, module in model.named_modules():
        if isinstance(module, nn.Conv1d | nn.RNNBase):
            raise ModelLoadError(f"config.json: {name} is not supported: {path} keeps a state besides keys and values")


def check_calls(text: PreTrainedConfig, calls: Sequence[AttentionCall]) -> None:
    if len(calls) != text.num_hidden_layers:
        calling = f"{len(calls)} of its {text.num_hidden_layers} layers call attention"
        raise _refused(text, f"{calling} through transformers' interface")
    if len({(call.key.shape[1], call.key.shape[3]) for call in calls}) > 1:
        raise _refused(text, "its layers have keys of different shapes")
    head_dim = calls[0].key.shape[3]
    if head_dim > _MOST_HEAD_DIM:
        raise _refused(text, f"its head_dim {head_dim} exceeds the limit of {_MOST_HEAD_DIM}")
    window = _window(text)
    if window is not None and all(call.window is None for call in calls):
        raise _refused(text, f"its sliding_window {window} is only in its masks, not in its calls of attention")
    for index, call in enumerate(calls):
        _check_call(text, index, call)


def _check_call(text: PreTrainedConfig, index: int, call: AttentionCall) -> None:
    kinds = getattr(text, "layer_types", None)
    if kinds is not None and (kinds[index] == "sliding_attention") != (call.window is not None):
        raise _refused(text, f"layer {index} is of kind {kinds[index]}, but its attention window is {call.window}")
    if call.query.shape[3] != call.key.shape[3] or call.value.shape[3] > call.key.shape[3]:
        raise _refused(text, "its values are wider than its keys")
    if not getattr(call.module, "is_causal", True):
        raise _refused(text, "its attention is not causal")
    if call.mask is not None:
        raise _refused(text, "its attention uses a mask of its own")
    unknown = [
        name
        for name, value in call.others.items()
        if name not in _HARMLESS_ARGUMENTS and value is not None and value is not False
    ]
    if unknown:
        raise _refused(text, f"its attention has unsupported arguments: {', '.join(unknown)}")


def _window(text: PreTrainedConfig) -> int | None:
    """Of all layers, if it is shorter than the longest text (in Phi-3.5-MoE it is not)."""
    window = getattr(text, "sliding_window", None)
    has_kinds = getattr(text, "layer_types", None) is not None
    if has_kinds or not window or not getattr(text, "use_sliding_window", True):
        return None
    return window if window < text.max_position_embeddings else None


def _ropes(text: PreTrainedConfig) -> list[dict[str, object]]:
    """One for all layers, or one per kind of layer."""
    given = getattr(text, "rope_parameters", None) or {}
    nested = [each for each in given.values() if isinstance(each, dict)]
    return nested or [given]


def _refused(config: PreTrainedConfig, why: str) -> ModelLoadError:
    names = config.architectures or [config.model_type]
    return ModelLoadError(f"config.json: architecture {names[0]!r} is not supported: {why}")
