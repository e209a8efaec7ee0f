"""Whether a model answers here as transformers' `generate` answers: `headrace parity MODEL`."""
