"""One operation per file: contract, torch reference, Triton kernel, launcher. Imports nothing of `service`.

This file holds only a docstring: transformers looks for a distribution named `kernels`, and would take a `__version__`
here for its version.
"""
