"""Broken and nearly broken HTTP, byte by byte, against the real server: one answer to each request, or the end."""
