"""What config.json says about a model's mixtures of experts. Imports no torch, like every model's config."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A model's mixtures of experts. Sizes in elements.

    layers: per layer, whether it has experts instead of an MLP. top_k: experts per token. intermediate_size: of one
    expert. renormalizes: a token's weights are divided by their sum. shared_size: intermediate size of an expert that
    all tokens use, with its own gate; None: there is none. clamp_limit, clamp_alpha: of the clamped activation
    (kernels/experts_gate_up.py); without a limit it is SiLU. has_bias: router and all experts have one. is_mxfp4: the
    checkpoint's experts are MXFP4.
    """

    layers: tuple[bool, ...]
    num_experts: int
    top_k: int
    intermediate_size: int
    renormalizes: bool = True
    shared_size: int | None = None
    clamp_limit: float | None = None
    clamp_alpha: float = 1.0
    has_bias: bool = False
    is_mxfp4: bool = False
