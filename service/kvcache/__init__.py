"""Bookkeeping of the paged KV cache: which block belongs to whom. Owned by the engine thread; no tensors."""
