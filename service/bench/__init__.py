"""Measurements of single parts, offline: `python -m service.bench.<part>`. Nothing of the service imports them."""
