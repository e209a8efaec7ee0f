"""How an adapter's weights lie in KV blocks: row by row (unified paging of S-LoRA, Sheng et al. 2023, section 5).

An adapter of a module is A [rank, in] and B [out, rank]. The rows of A, and those of B transposed, are packed one
behind another into blocks, and a row is in one block. So any free blocks will do, and a table of where each row begins
is all that kernels need.
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
"""Where a row may begin: kernels read so much at once."""


@dataclass(frozen=True, slots=True)
class PackedAdapter:
    """An adapter's weights as a device takes them over.

    blocks [num_blocks, block_elements]. a_places, b_places [sites, max_rank]: where in `blocks`, seen flat, each row of
    A, and of B transposed, begins; 0 beyond the rank. ranks [sites] int32, 0 where it changes nothing. scales [sites].
    """

    blocks: Tensor
    a_places: Int64Array
    b_places: Int64Array
    ranks: npt.NDArray[np.int32]
    scales: npt.NDArray[np.float32]

    def offsets(self, places: Int64Array, block_ids: tuple[int, ...]) -> Int64Array:
        """Where the rows at these places lie among all blocks of a device, seen flat: the adapter has `block_ids`."""
        size = self.blocks.shape[1]
        moved: Int64Array = np.array(block_ids, np.int64)[places // size] * size + places % size
        return moved


@dataclass(frozen=True, slots=True)
class AdapterLayout:
    """sites: the modules that adapters may change, by their names in the base's checkpoint, in the order of the tables;
    of each this rank's part is packed. block_elements: of `dtype`, in a KV block. max_rank: of all adapters.
    other_stages: the modules of each other stage of the model. An adapter has the same blocks on all stages, as many as
    it takes where it takes most."""

    sites: Mapping[str, AdapterSite]
    max_rank: int
    block_elements: int
    dtype: torch.dtype
    other_stages: Sequence[Mapping[str, AdapterSite]] = ()

    def __post_init__(self) -> None:
        longest = max(max(site.own_in_features, site.own_out_features) for site in self.all_sites.values())
        if self._aligned(longest) > self.block_elements:
            raise ConfigError(
                f"block-size: adapters need blocks of {longest} numbers at least, a row of the model's largest matrix; "
                f"a block has {self.block_elements}"
            )

    @property
    def all_sites(self) -> Mapping[str, AdapterSite]:
        """Of the whole model."""
        return {name: site for sites in (self.sites, *self.other_stages) for name, site in sites.items()}

    @property
    def alignment(self) -> int:
        """Of each row's beginning, in elements."""
        return _ALIGNMENT_BYTES // self.dtype.itemsize

    @property
    def most_numbers(self) -> int:
        """Of A and B of an adapter that changes every site, with the highest rank."""
        return self.max_rank * sum(site.own_in_features + site.own_out_features for site in self.sites.values())

    @property
    def most_blocks(self) -> int:
        """Of an adapter that changes every site, with the highest rank."""
        return self._num_blocks(dict.fromkeys(self.all_sites, self.max_rank))

    def pack(self, weights: AdapterWeights, *, pinned: bool) -> PackedAdapter:
        """Any thread. weights: in `dtype`, of sites of the whole model, with ranks up to `max_rank`."""
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
        """Of an adapter with these ranks, by site, on each stage."""
        return max(-(-self._end(sites, ranks) // self.block_elements) for sites in (self.sites, *self.other_stages))

    def _end(self, sites: Mapping[str, AdapterSite], ranks: Mapping[str, int]) -> int:
        end = 0
        for name, site in sites.items():
            for size in (site.own_in_features, site.own_out_features):
                _, end = self._places(end, ranks.get(name, 0), size)
        return end

    def _places(self, end: int, num_rows: int, size: int) -> tuple[Int64Array, int]:
        """Where so many rows lie behind place `end`, and where they end."""
        stride = self._aligned(size)
        places = np.empty(num_rows, np.int64)
        for row in range(num_rows):
            if end % self.block_elements + stride > self.block_elements:
                end += -end % self.block_elements
            places[row] = end
            end += stride
        return places, end

    def _write(self, flat: Tensor, matrix: Tensor, places: Int64Array) -> None:
        """Rows that lie one behind another are copied at once."""
        size = matrix.shape[1]
        stride = self._aligned(size)
        breaks = [0, *(np.flatnonzero(np.diff(places) != stride) + 1).tolist(), len(places)]
        for first, stop in pairwise(breaks):
            begin = int(places[first])
            run = flat[begin : begin + (stop - first) * stride].view(-1, stride)
            run[:, :size] = matrix[first:stop]

    def _aligned(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment
