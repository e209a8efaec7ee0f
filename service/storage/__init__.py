"""What outlives the process: one SQLite file, and the contents of files, in the data directory.

Everything is opened when first used, in a thread of its own; an error of the disk is an error of the call that met it.
Callers are on the event loop.
"""
