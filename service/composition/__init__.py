"""The composition root in its parts: makes every object once and joins them, from the settings.

Imported by `main.py` and the command line only. Loading runs in a thread of its own, the rest on the event loop's.
"""
