"""The kernels as loops compiled for a CPU (numba), in bf16. Imported only by `kernels.cpu_loops`, and only where they
can run."""
