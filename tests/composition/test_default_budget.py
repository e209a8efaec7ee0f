from __future__ import annotations

import pytest

from service.composition.default_budget import default_budget


@pytest.mark.parametrize(("gib", "is_gpu", "tokens"), [(24, True, 2048), (80, True, 4096), (512, False, 512)])
def test_only_a_gpu_with_much_memory_has_a_budget_for_deep_queues(gib: int, is_gpu: bool, tokens: int):
    assert default_budget(gib << 30, is_gpu=is_gpu) == tokens
