"""Names of activations. Without torch, as every model's config is."""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
"""gelu_tanh is GELU by its approximation with tanh, as GPT-2 has it; gelu the exact one."""
