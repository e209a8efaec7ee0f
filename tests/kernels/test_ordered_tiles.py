from __future__ import annotations

from kernels.ordered_tiles import Fused, TileConfig, is_unsplit, num_parts, tile_config


def test_parts_depend_on_the_weight_alone():
    assert [num_parts(*shape) for shape in ((6144, 4096), (4096, 4096), (4096, 14336), (1024, 3072), (1024, 1024))] == [
        1,
        1,
        1,
        4,
        1,
    ]


LOW, WIDE = TileConfig(64, 128, 64, num_warps=4, num_stages=6), TileConfig(128, 128, 64, num_warps=8, num_stages=6)
HIGH, DEEP = TileConfig(256, 64, 64, num_warps=8, num_stages=5), TileConfig(128, 128, 128, num_warps=8, num_stages=3)
OF_TWO = TileConfig(128, 128, 64, num_warps=4, num_stages=3)
LARGE = TileConfig(256, 128, 64, num_warps=8, num_stages=4)


def test_tiles_that_take_the_multiprocessors_the_fewest_turns():
    """Of 132. 320 rows of 6,144 features are 144 tiles of 128 x 128, of which 12 would have a turn to themselves."""
    qkv = {rows: tile_config(rows, 6144, 4096) for rows in (72, 128, 200, 256, 320, 384, 768, 4096)}
    assert qkv == {72: LOW, 128: LOW, 200: DEEP, 256: HIGH, 320: LOW, 384: OF_TWO, 768: OF_TWO, 4096: OF_TWO}
    gated = {rows: tile_config(rows, 28672, 4096, gated=True) for rows in (72, 256, 320, 512, 640, 1024, 4096)}
    assert gated == {72: LOW, 256: OF_TWO, 320: OF_TWO, 512: WIDE, 640: WIDE, 1024: LARGE, 4096: LARGE}


def test_parts_of_the_inputs_side_by_side_where_that_is_shorter():
    sizes = 128, 200, 256, 512, 1024, 2048, 4096
    for size, expected in ((3072, [128, 200, 256, 512]), (8192, [128, 200, 256, 512, 1024])):
        assert [rows for rows in sizes if tile_config(rows, 1024, size).by_parts] == expected


def test_cublas_multiplies_where_tiles_leave_the_last_turn_half_empty():
    rows = 72, 256, 512, 640, 768, 1152, 2048, 4096

    def of(features, size, fused):
        return [n for n in rows if is_unsplit(n, features, size, fused=fused)]

    assert of(6144, 4096, Fused.DIVISION) == [72, 256, 512, 768, 1152]
    assert of(28672, 4096, Fused.GATE) == [256, 512, 640, 768, 1152]
    assert of(4096, 14336, Fused.ADD_NORM) == list(rows)
    assert of(2048, 8192, Fused.ADD_NORM) == [72, 256, 512, 640, 768, 1152]
    assert of(128256, 4096, Fused.NOTHING) == list(rows)
    assert of(128264, 4096, Fused.NOTHING) == of(16384, 2056, Fused.NOTHING) == of(1024, 512, Fused.NOTHING) == []
    assert of(4096, 1024, Fused.DIVISION) == of(6144, 1024, Fused.GATE) == []
