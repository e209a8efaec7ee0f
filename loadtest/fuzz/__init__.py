"""Malformed and nearly valid HTTP, byte by byte, against the real server: each request gets one answer or a close."""
