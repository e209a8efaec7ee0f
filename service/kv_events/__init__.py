"""Publishes the prefix cache's events over ZMQ. The engine's thread queues them; a thread of its own sends them."""
