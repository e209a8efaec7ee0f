"""Thin modules over the kernels: what a Transformer is built from. Engine thread; used by `service.models` only."""
