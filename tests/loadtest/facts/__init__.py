"""Tests of the facts that a real model learns: what it is taught, and how it is asked."""
