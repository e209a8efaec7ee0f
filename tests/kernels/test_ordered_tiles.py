from __future__ import annotations

from kernels.ordered_tiles import TileConfig, num_parts, tile_config


def test_parts_depend_on_the_weight_alone():
    assert [num_parts(*shape) for shape in ((6144, 4096), (4096, 4096), (4096, 14336), (1024, 3072), (1024, 1024))] == [
        1,
        2,
        2,
        4,
        1,
    ]


WIDE, HIGH = TileConfig(128, 128, 64, num_warps=4, num_stages=3), TileConfig(256, 64, 64, num_warps=8, num_stages=5)
ONE = TileConfig(128, 128, 64, num_warps=8, num_stages=6)


def test_tiles_that_fill_the_multiprocessors_last_turn():
    """Of 132. By 128 x 128 768 rows of 6,144 features are 288 tiles: two turns of pairs, of which the last is nearly
    empty."""
    qkv = {rows: tile_config(rows, 6144, 4096) for rows in (256, 512, 640, 768, 1024, 2048, 4096)}
    assert qkv == {256: HIGH, 512: WIDE, 640: WIDE, 768: HIGH, 1024: HIGH, 2048: WIDE, 4096: WIDE}
    gated = {rows: tile_config(rows, 28672, 4096, gated=True) for rows in (256, 512, 1024, 4096)}
    assert gated == {256: WIDE, 512: ONE, 1024: WIDE, 4096: WIDE}


def test_parts_of_the_inputs_side_by_side_where_that_is_shorter():
    by_parts = [rows for rows in (256, 512, 640, 768, 1024, 4096) if tile_config(rows, 4096, 14336).by_parts]
    assert by_parts == [256, 640, 768]
