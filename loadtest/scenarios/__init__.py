"""The papers' figures, one file each, drawn from our own runs: `python -m loadtest.scenarios`.

A scenario decides what is compared with what; replaying a trace, measuring, printing and drawing is the frame's.
"""
