"""The papers' figures, one file each, from our own measurements: `python -m loadtest.scenarios`.

A scenario decides what is compared with what. Shared code replays the traces, measures, prints and draws.
"""
