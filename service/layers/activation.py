"""Names of activations. Imports no torch, like every model's config."""

from __future__ import annotations

from typing import Literal

Activation = Literal["relu", "gelu", "gelu_tanh", "silu"]
"""gelu: exact. gelu_tanh: GELU's approximation with tanh, as in GPT-2."""
