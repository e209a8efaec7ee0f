"""Whether a model's answers here equal those of transformers' `generate`: `headrace parity MODEL`."""
