"""Minutes or hours of all kinds of clients against the real server, and whether anything of them is left."""
