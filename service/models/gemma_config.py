"""What config.json says about Gemma beyond what every Llama has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from service.errors import ModelLoadError
from service.layers.rope_config import RopeConfig
from service.models.config_fields import ConfigFields
from service.models.rope_scaling import parse_rope

GEMMA, GEMMA_2, GEMMA_3 = "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM"

_SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        GEMMA: {"head_dim": 256},
        GEMMA_2: {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 256_000},
        GEMMA_3: {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 262_208},
    }
)
_CONTEXTS = MappingProxyType({GEMMA: 8192, GEMMA_2: 8192, GEMMA_3: 131_072})
_FULL, _SLIDING = "full_attention", "sliding_attention"
_GLOBAL_BASE, _LOCAL_BASE = 1e6, 1e4


@dataclass(frozen=True, slots=True)
class GemmaConfig:
    """attention_scale: of the scores, before a soft cap. attention_softcap, logit_softcap: None: none.
    has_sandwich_norms: the outputs of attention and MLP are normed too, before they are added. has_head_norms: each
    head's query and key are normed. local_rope: for the layers with a window, if they have their own."""

    attention_scale: float
    attention_softcap: float | None
    logit_softcap: float | None
    has_sandwich_norms: bool
    has_head_norms: bool
    local_rope: RopeConfig | None


def gemma_size(architecture: str, fields: ConfigFields, name: str) -> int:
    """A size that config.json may leave out, as it does for the text part of a model with vision."""
    return fields.size(name, _SIZES[architecture].get(name))


def gemma_context(architecture: str, fields: ConfigFields) -> int:
    return fields.size("max_position_embeddings", _CONTEXTS[architecture])


def parse_gemma(architecture: str, fields: ConfigFields, head_dim: int) -> GemmaConfig:
    """Raises ModelLoadError naming the field."""
    fields.require("use_bidirectional_attention", False)
    scalar = float(head_dim) if architecture == GEMMA else fields.number("query_pre_attn_scalar", 256.0)
    is_second = architecture == GEMMA_2
    return GemmaConfig(
        attention_scale=scalar**-0.5,
        attention_softcap=_softcap(fields, "attn_logit_softcapping", 50.0) if is_second else None,
        logit_softcap=None
        if architecture == GEMMA
        else _softcap(fields, "final_logit_softcapping", is_second and 30.0),
        has_sandwich_norms=architecture != GEMMA,
        has_head_norms=architecture == GEMMA_3,
        local_rope=_local_rope(fields, head_dim) if architecture == GEMMA_3 else None,
    )


def gemma_rope(architecture: str, fields: ConfigFields, head_dim: int, max_positions: int) -> RopeConfig:
    """For the layers that see all tokens."""
    if architecture != GEMMA_3:
        return parse_rope(fields, head_dim, max_positions)
    by_kind = _by_kind(fields)
    return parse_rope(fields if by_kind is None else by_kind[_FULL], head_dim, max_positions, _GLOBAL_BASE)


def gemma_windows(architecture: str, fields: ConfigFields, num_layers: int) -> tuple[int | None, ...]:
    """Gemma: none. Gemma 2: every other layer, starting with the first. Gemma 3: all except every sixth."""
    if architecture == GEMMA:
        return (None,) * num_layers
    period = 2 if architecture == GEMMA_2 else fields.size("sliding_window_pattern", 6)
    window = fields.size("sliding_window", 4096)
    kinds = fields.get("layer_types")
    if kinds is None:
        return tuple(window if (layer + 1) % period else None for layer in range(num_layers))
    if not isinstance(kinds, list) or len(kinds) != num_layers or not {_FULL, _SLIDING}.issuperset(kinds):
        raise ModelLoadError(f"{fields.source}: layer_types must name {_FULL!r} or {_SLIDING!r} for each layer")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _local_rope(fields: ConfigFields, head_dim: int) -> RopeConfig:
    by_kind = _by_kind(fields)
    if by_kind is None:
        return RopeConfig(fields.number("rope_local_base_freq", _LOCAL_BASE), head_dim)
    return parse_rope(by_kind[_SLIDING], head_dim, 1, _LOCAL_BASE)


def _by_kind(fields: ConfigFields) -> Mapping[str, ConfigFields] | None:
    """`rope_parameters` per kind of layer, as transformers 5 writes them; None if they are written otherwise."""
    written = fields.get("rope_parameters")
    if not isinstance(written, dict) or not any(isinstance(value, dict) for value in written.values()):
        return None
    return {
        kind: ConfigFields({"rope_parameters": written.get(kind) or {}}, f"{fields.source}: {kind}")
        for kind in (_FULL, _SLIDING)
    }


def _softcap(fields: ConfigFields, name: str, usual: float) -> float | None:
    """None if null is written. usual: the value if nothing is written; 0 for none."""
    if name in fields:
        return None if fields.get(name) is None else fields.number(name)
    return usual or None
