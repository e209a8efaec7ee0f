"""The process itself: its preparation before the imports, its log, how long it may hang, and how it ends.

Called by `main.py`, on the event-loop thread, and by command lines before there is a loop. Knows nothing of HTTP or of
settings.
"""
