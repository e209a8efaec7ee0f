"""One operation a file: contract, torch reference, Triton kernel, launcher. Imports torch and triton only.

This file stays a docstring: transformers looks for a distribution of this name and would take a `__version__`
here for it.
"""
