"""Several hosts serve one model in stages (ORCA, section 4.1): what goes from host to host, over TCP.

The head has rank 0, the scheduler and HTTP. Every other host has one process that stands there for rank 0: it starts
that host's ranks, puts the head's messages into their control ring and tells the head their facts. Ranks know nothing
of it. Nothing is unpickled that came from another host, and nothing is read from one that does not know the secret.
"""
