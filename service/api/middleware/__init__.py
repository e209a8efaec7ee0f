"""What every request passes, pure ASGI: ids, metrics, errors, hosts, keys, bodies."""
