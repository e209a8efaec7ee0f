"""Independent random streams from one seed: changing one draw of an experiment does not change the others."""

import zlib

import numpy as np


def random_stream(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """The generator for `purpose` (such as "arrivals"), further split by `ids`. The same arguments give the same
    stream.

    `seed` and `ids` must not be negative.
    """
    return np.random.default_rng([seed, zlib.crc32(purpose.encode()), *ids])
