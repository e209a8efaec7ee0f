"""Blocks on the host, and blocks being copied between device and host (PagedAttention, section 4.5: swapping).

A block that several of the moved sequences share is copied once and stays shared. Memory on either side is freed only
after the copy that touches it has finished, even if its owner has ended meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.core.block_moves import Transfer
from service.kvcache.block_pool import BlockPool


@dataclass(slots=True)
class _InFlight:
    """References that a transfer holds and gives up when it has finished; a block may occur several times."""

    sequence_ids: list[int]
    device_blocks: list[int] = field(default_factory=list)
    host_blocks: list[int] = field(default_factory=list)


class SwapSpace:
    """`num_blocks` host blocks. A sequence, known by its id, is on the device, here, or moving between the two."""

    def __init__(self, num_blocks: int, device_pool: BlockPool) -> None:
        self._host = BlockPool(num_blocks) if num_blocks > 0 else None
        self._device = device_pool
        self._tables: dict[int, list[int]] = {}
        self._in_flight: dict[int, _InFlight] = {}
        self._transfer_of: dict[int, int] = {}
        self._next_transfer_id = 0

    @property
    def num_free(self) -> int:
        """Host blocks that nobody holds."""
        return 0 if self._host is None else self._host.num_free

    @property
    def num_used(self) -> int:
        return 0 if self._host is None else self._host.num_used

    @property
    def num_departing(self) -> int:
        """Device references that will be freed when the transfers have finished."""
        return sum(len(flight.device_blocks) for flight in self._in_flight.values())

    @property
    def has_transfers(self) -> bool:
        """Whether any transfers are under way."""
        return bool(self._in_flight)

    def holds(self, sequence_id: int) -> bool:
        """Whether the sequence is here, or being swapped out."""
        return sequence_id in self._tables

    def is_swapping(self, sequence_id: int) -> bool:
        """Whether the sequence is being swapped out or in."""
        return sequence_id in self._transfer_of

    def swapping_sequence_ids(self) -> list[int]:
        """Ids of the sequences that are being swapped out or in."""
        return list(self._transfer_of)

    def num_blocks_of(self, sequence_ids: list[int]) -> int:
        """Distinct host blocks of these sequences, which must be here."""
        return len({block for sequence_id in sequence_ids for block in self._tables[sequence_id]})

    def swap_out(self, tables: dict[int, list[int]]) -> Transfer:
        """Start to move sequences to the host: takes over their device tables, with the references. The caller has
        checked `num_free`."""
        assert self._host is not None
        host_of: dict[int, int] = {}
        for sequence_id, block_ids in tables.items():
            for block_id in block_ids:
                if block_id in host_of:
                    self._host.share(host_of[block_id])
                else:
                    host_of[block_id] = self._host.allocate()
            self._tables[sequence_id] = [host_of[block_id] for block_id in block_ids]
        flight = _InFlight(list(tables), device_blocks=[b for block_ids in tables.values() for b in block_ids])
        return Transfer(self._begin(flight), True, tuple(host_of), tuple(host_of.values()))

    def swap_in(self, sequence_ids: list[int], device_of: dict[int, int]) -> Transfer:
        """Start to move sequences to the device. device_of: the destination of each host block."""
        flight = _InFlight(sequence_ids)
        for sequence_id in sequence_ids:
            flight.host_blocks += self._tables.pop(sequence_id)
        return Transfer(self._begin(flight), False, tuple(device_of.values()), tuple(device_of))

    def table(self, sequence_id: int) -> list[int]:
        """Host blocks of a sequence that is here, in the order of its tokens."""
        return self._tables[sequence_id]

    def free(self, sequence_id: int) -> None:
        """The sequence ended while it was here. Its host blocks are freed once nothing is copied into them."""
        assert self._host is not None
        host_blocks = self._tables.pop(sequence_id)
        transfer_id = self._transfer_of.pop(sequence_id, None)
        if transfer_id is not None:
            self._in_flight[transfer_id].host_blocks += host_blocks
        else:
            for block_id in host_blocks:
                self._host.release(block_id)

    def keep_until_arrival(self, sequence_id: int, device_blocks: list[int]) -> None:
        """The sequence ended while it was swapped in. Its device blocks are freed once nothing is copied into them."""
        self._in_flight[self._transfer_of.pop(sequence_id)].device_blocks += device_blocks

    def finish(self, transfer_id: int) -> None:
        """The transfer's copies are done: free the references that it holds."""
        flight = self._in_flight.pop(transfer_id)
        for sequence_id in flight.sequence_ids:
            self._transfer_of.pop(sequence_id, None)
        for block_id in reversed(flight.device_blocks):
            self._device.release(block_id)
        for block_id in flight.host_blocks:
            assert self._host is not None
            self._host.release(block_id)

    def finish_all(self) -> None:
        """All transfers have ended, in success or not."""
        for transfer_id in list(self._in_flight):
            self.finish(transfer_id)

    def held_device_blocks(self) -> list[int]:
        """Device blocks that transfers hold, once per reference."""
        return [block_id for flight in self._in_flight.values() for block_id in flight.device_blocks]

    def _begin(self, flight: _InFlight) -> int:
        transfer_id = self._next_transfer_id
        self._next_transfer_id += 1
        self._in_flight[transfer_id] = flight
        for sequence_id in flight.sequence_ids:
            self._transfer_of[sequence_id] = transfer_id
        return transfer_id
