"""What config.json says of a model's mixtures of experts. Without torch, as every model's config is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ExpertsConfig:
    """A model's mixtures of experts. Sizes in elements.

    layers: one a layer, whether it has experts or an MLP. top_k: experts of a token. intermediate_size: of an expert.
    renormalizes: a token's weights are divided by their sum. shared_size: intermediate size of an expert that all
    tokens go to, with a gate of its own; None: there is none. clamp_limit, clamp_alpha: of the activation
    (kernels/experts_gate_up.py), which is SiLU's without.
    has_bias: of the router and all experts. is_mxfp4: the checkpoint's experts are.
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
