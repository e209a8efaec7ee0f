"""Middleware for every request, pure ASGI: ids, metrics, errors, hosts, keys, bodies."""
