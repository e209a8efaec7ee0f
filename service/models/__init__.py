"""Architectures for inference and training on one device, their configuration and their weights. No cache logic."""
