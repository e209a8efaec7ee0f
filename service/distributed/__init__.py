"""Several devices of one host serve one model (ORCA, section 4.1): one process per rank; rank 0 is the service itself.

Rank 0 schedules. Its plans reach the other ranks through host memory, apart from tensors, as one small message a step;
each rank computes its part of that step. The engine sees of this package an executor, and the composition how to start
the ranks and learn that one is lost.
"""
