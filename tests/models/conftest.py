from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test sees the same random tensors, whichever ran before it."""
    torch.manual_seed(0)
