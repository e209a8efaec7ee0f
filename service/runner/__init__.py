"""Plan to tensors to ids: batch building, KV storage, memory, the forward pass. Engine thread; owns the tensors."""
