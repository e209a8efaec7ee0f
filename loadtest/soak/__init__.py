"""Minutes or hours of clients of all kinds against the real server, then a check that nothing of them is left."""
