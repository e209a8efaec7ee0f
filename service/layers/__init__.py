"""Thin modules over the kernels: what a Transformer is built from. `service.models` builds with them, in the loading
thread; the runner, on the engine's, tells them by `AttentionInputs` what a batch is."""
