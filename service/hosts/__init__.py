"""Several hosts serve one model in stages (ORCA, section 4.1): the messages between hosts, over TCP.

The head has rank 0, the scheduler and HTTP. Each other host has one process that stands in for rank 0: it starts that
host's ranks, puts the head's messages into their control ring and sends their counters to the head. The ranks see no
difference. Nothing from another host is unpickled, and nothing is read from a host that does not know the secret.
"""
