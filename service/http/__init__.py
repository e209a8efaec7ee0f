"""The listening socket and its connections: uvicorn, with limits, inside our event loop. Event-loop thread.

Made by `main.py`, which passes it the app of `service.api`; the two do not know each other.
"""
