from __future__ import annotations

from kernels.ordered_tiles import num_parts


def test_parts_depend_on_the_weight_alone():
    assert [num_parts(*shape) for shape in ((6144, 4096), (4096, 4096), (4096, 14336), (1024, 3072), (1024, 1024))] == [
        1,
        2,
        2,
        4,
        1,
    ]
