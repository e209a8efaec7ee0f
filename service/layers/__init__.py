"""Thin modules over the kernels: what a Transformer is built from. `service.models` builds with them on the loading
thread; the runner describes each batch to them with `AttentionInputs`, on the engine thread."""
