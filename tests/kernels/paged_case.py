"""Keys and values scattered over blocks, everything else poisoned: the setting of the paged attention tests."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class PagedCase:
    """keys[s], values[s] [context_len, K, D]: the truth. The caches hold the same, and NaN in every other cell."""

    keys: list[Tensor]
    values: list[Tensor]
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    context_lens: Tensor


def paged_case(
    context_lens: list[int], block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, seed: int = 0
) -> PagedCase:
    generator = torch.Generator().manual_seed(seed)
    blocks_of = [-(-length // block_size) for length in context_lens]
    num_blocks = sum(blocks_of) + 2
    free = list(range(num_blocks))
    random.Random(seed).shuffle(free)
    # Two layers of which the second is used: the view of one layer is strided, as in the storage.
    storage = torch.full((num_blocks, 2, 2, block_size, num_kv_heads, head_dim), float("nan"), dtype=dtype)
    key_cache, value_cache = storage[:, 1, 0], storage[:, 1, 1]
    block_table = torch.full((len(context_lens), max(blocks_of, default=0) + 1), -7, dtype=torch.int32)
    keys, values = [], []
    for seq, length in enumerate(context_lens):
        shape = (length, num_kv_heads, head_dim)
        keys.append(torch.randn(shape, generator=generator).to(dtype))
        values.append(torch.randn(shape, generator=generator).to(dtype))
        ids = [free.pop() for _ in range(blocks_of[seq])]
        block_table[seq, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
        for position in range(length):
            cell = ids[position // block_size], position % block_size
            key_cache[cell], value_cache[cell] = keys[seq][position], values[seq][position]
    lens = torch.tensor(context_lens, dtype=torch.int32)
    return PagedCase(keys, values, key_cache, value_cache, block_table, lens)


def forget_unseen(case: PagedCase, num_queries: list[int], sliding_window: int) -> PagedCase:
    """The same to whoever reads what the last `num_queries` tokens of each sequence see, and nothing else: other cells
    hold NaN, and in place of blocks of such cells tables name a block that never held anything else."""
    storage, table = case.key_cache._base.clone(), case.block_table.clone()
    keys, values = storage[:, 1, 0], storage[:, 1, 1]
    block_size = keys.shape[1]
    used = {int(block) for row in table for block in row if block >= 0}
    (never_used, *_) = (block for block in range(len(keys)) if block not in used)
    for seq, (length, count) in enumerate(zip(case.context_lens.tolist(), num_queries, strict=True)):
        for position in range(max(0, length - count + 1 - sliding_window)):
            cell = int(case.block_table[seq, position // block_size]), position % block_size
            keys[cell] = values[cell] = float("nan")
            if position % block_size == block_size - 1:
                table[seq, position // block_size] = never_used
    return replace(case, key_cache=keys, value_cache=values, block_table=table)


def naive_attention(query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query [H, D] over [C, K, D], head by head in fp64."""
    group = query.shape[0] // keys.shape[1]
    heads = []
    for head in range(query.shape[0]):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        scores = (k @ query[head].double()) * scale
        weights = torch.exp(scores - scores.max())
        heads.append((weights[:, None] * v).sum(0) / weights.sum())
    return torch.stack(heads)
