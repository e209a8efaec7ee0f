"""Independent random streams of one seed, so that changing one draw of an experiment leaves the others as
they were.
"""

import zlib

import numpy as np


def random_stream(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """The generator for `purpose` (say "arrivals"), further split by `ids`; the same arguments give the same
    stream.

    `seed` and `ids` must not be negative.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *ids])
