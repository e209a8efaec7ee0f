"""Replaying a trace against a system in this process: no HTTP, no sleeping, an exact arrival scale."""
