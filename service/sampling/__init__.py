"""Logits to ids: per-request parameters as tensors, and the order of transforms. Engine thread."""
