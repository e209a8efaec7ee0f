"""The process itself: its preparation before the imports, its log, its watchdog, and its end (also
with its parent's).

Called by `main.py`, on the event-loop thread, and by commands before there is a loop. Knows nothing of HTTP or of
settings.
"""
