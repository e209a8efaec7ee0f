"""Tests of the load generator: its randomness, its HTTP client, its arithmetic, its error on known times."""
