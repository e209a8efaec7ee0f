"""The listening socket and its connections: uvicorn, bounded, inside our event loop. Event-loop thread.

Made by `main.py`, which hands it the app of `service.api`; the two know nothing of each other.
"""
