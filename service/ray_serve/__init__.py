"""Replicas of the service on a Ray cluster, by Ray Serve (the extra `ray`): each a whole server in its own process.

Ray starts, places, scales and replaces them, and routes by prefix. What of this needs Ray is in `application` and
`prefix_router`; the rest is ordinary asyncio.
"""
