from __future__ import annotations

from service.core.adapter import Adapter


def test_two_adapters_of_the_same_weights_are_two() -> None:
    first, second = (Adapter("poet", 1, 4, "ab") for _ in range(2))
    assert first != second
    assert {first: 1}.get(second) is None
