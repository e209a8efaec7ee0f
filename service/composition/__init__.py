"""The composition root in parts: makes every object once, from the settings, and joins them.

Imported by `main.py` and the command line only. Loading runs in a thread of its own, everything else on the event
loop's.
"""
