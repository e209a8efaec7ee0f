"""Rotary positions from config.json: `rope_scaling` beside `rope_theta` (transformers 4), or `rope_parameters` (5)."""

from __future__ import annotations

import math

from service.errors import ModelLoadError
from service.layers.rope_config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)
from service.models.config_fields import ConfigFields


def parse_rope(
    fields: ConfigFields,
    head_dim: int,
    max_positions: int,
    usual_theta: float = 10_000.0,
    *,
    turns_part: bool = False,
) -> RopeConfig:
    """Rotary positions of all layers. usual_theta: the default. turns_part: only a part of a head's dims may be
    rotated. Raises ModelLoadError for a scaling, or a field of one, that is not supported."""
    name = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    given = fields.get(name) or {}
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        raise ModelLoadError(f"{fields.source}: {name} must be a JSON object without nested objects")
    own = ConfigFields(given, f"{fields.source}: {name}")
    share = own.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if (share != 1.0 and not turns_part) or share > 1.0:
        raise ModelLoadError(f"{own.source}: partial_rotary_factor {share:g} is not supported")
    rotary_dim = int(head_dim * share)
    if rotary_dim % 2 or not rotary_dim:
        raise ModelLoadError(
            f"{own.source}: partial_rotary_factor {share:g} of {head_dim} dims is not a whole number of pairs"
        )
    theta = own.number("rope_theta", fields.number("rope_theta", usual_theta))
    written = own.size("original_max_position_embeddings", max_positions)
    trained = fields.size("original_max_position_embeddings", written)
    return RopeConfig(theta, rotary_dim, _scaling(own, trained, max_positions, rotary_dim // 2))


def _scaling(own: ConfigFields, trained: int, max_positions: int, num_pairs: int) -> RopeScaling | None:
    """trained: the context length before it was stretched. num_pairs: half the number of dims that are rotated."""
    kind = own.get("rope_type") or own.get("type") or "default"
    match kind:
        case "default" | "mrope":
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
            return _yarn(own, trained, max_positions)
        case "longrope" | "su":
            return _longrope(own, trained, max_positions, num_pairs)
        case _:
            raise ModelLoadError(
                f"{own.source}: rope_type {kind!r} is not supported; supported: default, linear, dynamic, llama3, yarn,"
                " longrope"
            )


def _longrope(own: ConfigFields, trained: int, max_positions: int, num_pairs: int) -> LongRopeScaling:
    factor = own.number("factor", max_positions / trained)
    inferred = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(trained))
    short, long = (_factors(own, name, num_pairs) for name in ("short_factor", "long_factor"))
    return LongRopeScaling(short, long, trained, own.number("attention_factor", inferred))


def _factors(own: ConfigFields, name: str, num_pairs: int) -> tuple[float, ...]:
    written = own.get(name)
    if not isinstance(written, list) or len(written) != num_pairs:
        raise ModelLoadError(f"{own.source}: {name} must be a list of {num_pairs} numbers")
    return tuple(ConfigFields({name: value}, own.source).number(name) for value in written)


def _yarn(own: ConfigFields, trained: int, max_positions: int) -> YarnScaling:
    factor = own.number("factor", max_positions / trained)

    def magnitude(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    inferred = magnitude(1.0)
    if own.get("mscale") and own.get("mscale_all_dim"):
        inferred = magnitude(own.number("mscale")) / magnitude(own.number("mscale_all_dim"))
    return YarnScaling(
        factor=factor,
        original_max_positions=trained,
        attention_factor=own.number("attention_factor", inferred),
        beta_fast=own.number("beta_fast", 32.0),
        beta_slow=own.number("beta_slow", 1.0),
        truncate=own.flag("truncate", True),
    )
