"""What outlives the process: one SQLite file, and the contents of files, below the data directory.

Everything is opened at its first use, in a thread of its own; whatever is wrong with the disk is an error of the call
that met it. Callers are on the event loop.
"""
