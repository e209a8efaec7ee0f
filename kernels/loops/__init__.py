"""The kernels as loops compiled for a CPU (numba), bf16. Imported by `kernels.cpu_loops` alone, where they run."""
