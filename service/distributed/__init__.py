"""Several devices of one host serve one model (ORCA, section 4.1): a process a rank, rank 0 is the service's own.

Rank 0 decides. What it decides goes to the others from host to host, through shared memory and apart from tensors, as
one small message a step; each rank computes its part of that step. Of this package the engine knows an executor, and
the composition how to start the ranks and when one is lost.
"""
