"""The prefix cache's events on their way out, over ZMQ. The engine's thread tells; a thread of its own sends."""
