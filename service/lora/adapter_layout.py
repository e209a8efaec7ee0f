"""Layout of an adapter's weights in KV blocks: row by row (unified paging of S-LoRA, Sheng et al. 2023, section 5).

A module's adapter is A [rank, in] and B [out, rank]. The rows of A, and those of B transposed, are packed into blocks
one after the other; no row crosses a block border. So any free blocks will do, and kernels only need a table of where
each row begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from service.errors import ConfigError
from service.lora.adapter_folder import AdapterSite, AdapterWeights

Int64Array = npt.NDArray[np.int64]

_ALIGNMENT_BYTES = 16
"""Alignment of rows: kernels read so many bytes at once."""


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter's weights, ready to be copied to the device.

    blocks [num_blocks, block_elements]. a_places, b_places [sites, max_rank]: element index in the flattened `blocks`
    where each row of A, and of B transposed, begins; 0 beyond the rank. ranks [sites] int32: 0 if the site is
    unchanged. scales [sites].
    """

    blocks: Tensor
    a_places: Int64Array
    b_places: Int64Array
    ranks: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]

    def offsets(self, places: Int64Array, block_ids: tuple[int, ...]) -> Int64Array:
        """Element indices of these places in all of a device's flattened blocks, if the adapter has `block_ids`."""
        size = self.blocks.shape[1]
        moved: Int64Array = np.array(block_ids, np.int64)[places // size] * size + places % size
        return moved


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """sites: modules that adapters may change, by name in the base's checkpoint, in the order of the tables; of each,
    this rank's part is packed. block_elements: elements of `dtype` per KV block. max_rank: of all adapters.
    other_stages: the modules of the other pipeline stages. An adapter has the same block ids on all stages, and as many
    as it takes on the stage where it takes most."""

    sites: Mapping[str, AdapterSite]
    max_rank: int
    block_elements: int
    dtype: torch.dtype
    other_stages: Sequence[Mapping[str, AdapterSite]] = ()

    def __post_init__(self) -> None:
        longest = max(max(site.own_in_features, site.own_out_features) for site in self.all_sites.values())
        if self._aligned(longest) > self.block_elements:
            raise ConfigError(
                f"block-size: with adapters, a block must hold at least {longest} elements (one row of the model's "
                f"largest matrix); it holds {self.block_elements}"
            )

    @property
    def all_sites(self) -> Mapping[str, AdapterSite]:
        """Sites of all stages."""
        return {name: site for sites in (self.sites, *self.other_stages) for name, site in sites.items()}

    @property
    def alignment(self) -> int:
        """Alignment of rows, in elements."""
        return _ALIGNMENT_BYTES // self.dtype.itemsize

    @property
    def most_numbers(self) -> int:
        """The most elements of A and B: of an adapter with every site of this stage, at the highest rank."""
        return self.max_rank * sum(site.own_in_features + site.own_out_features for site in self.sites.values())

    @property
    def most_blocks(self) -> int:
        """The most blocks of an adapter: with every site, at the highest rank."""
        return self._num_blocks(dict.fromkeys(self.all_sites, self.max_rank))

    def pack(self, weights: AdapterWeights, *, pinned: bool) -> PackedAdapter:
        """Any thread. weights: in `dtype`, for sites of the whole model, with ranks up to `max_rank`."""
        shape = (len(self.sites), self.max_rank)
        a_places, b_places = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        ranks, scales = np.zeros(shape[0], np.int32), np.zeros(shape[0], np.float32)
        rows: list[tuple[Tensor, Int64Array]] = []
        end = 0
        for index, (name, site) in enumerate(self.sites.items()):
            if name not in weights.sites:
                continue
            own = site.own(weights.sites[name])
            rank = len(own.a)
            ranks[index], scales[index] = rank, own.scale
            for matrix, places in ((own.a, a_places), (own.b.T, b_places)):
                places[index, :rank], end = self._places(end, *matrix.shape)
                rows.append((matrix, places[index, :rank]))
        num_blocks = self._num_blocks({name: len(site.a) for name, site in weights.sites.items()})
        blocks = torch.zeros(num_blocks, self.block_elements, dtype=self.dtype, pin_memory=pinned)
        for matrix, places in rows:
            self._write(blocks.view(-1), matrix, places)
        return PackedAdapter(blocks, a_places, b_places, ranks, scales)

    def _num_blocks(self, ranks: Mapping[str, int]) -> int:
        """Blocks of an adapter with these ranks per site: the maximum over stages."""
        return max(-(-self._end(sites, ranks) // self.block_elements) for sites in (self.sites, *self.other_stages))

    def _end(self, sites: Mapping[str, AdapterSite], ranks: Mapping[str, int]) -> int:
        end = 0
        for name, site in sites.items():
            for size in (site.own_in_features, site.own_out_features):
                _, end = self._places(end, ranks.get(name, 0), size)
        return end

    def _places(self, end: int, num_rows: int, size: int) -> tuple[Int64Array, int]:
        """Places of `num_rows` rows of `size` elements after place `end`; and the end of the last one."""
        stride = self._aligned(size)
        places = np.empty(num_rows, np.int64)
        for row in range(num_rows):
            if end % self.block_elements + stride > self.block_elements:
                end += -end % self.block_elements
            places[row] = end
            end += stride
        return places, end

    def _write(self, flat: Tensor, matrix: Tensor, places: Int64Array) -> None:
        """Copy a matrix's rows to their places; adjacent rows are copied together."""
        size = matrix.shape[1]
        stride = self._aligned(size)
        breaks = [0, *(np.flatnonzero(np.diff(places) != stride) + 1).tolist(), len(places)]
        for first, stop in pairwise(breaks):
            begin = int(places[first])
            run = flat[begin : begin + (stop - first) * stride].view(-1, stride)
            run[:, :size] = matrix[first:stop]

    def _aligned(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment
