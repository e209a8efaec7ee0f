"""Replicas of the service on a Ray cluster, with Ray Serve (extra `ray`); each is a whole server in a process of its
own.

Ray starts, places, scales and replaces them, and routes by prefix. Only `application` and `prefix_router` need Ray; the
rest is ordinary asyncio.
"""
