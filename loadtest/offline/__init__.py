"""Replays a trace against a system in this process: no HTTP, no sleeping, exact arrival times."""
