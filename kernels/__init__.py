"""One operation a file: contract, torch reference, Triton kernel, launcher. Imports nothing of `service`.

This file stays a docstring: transformers looks for a distribution of this name and would take a `__version__`
here for it.
"""
