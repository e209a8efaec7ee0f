"""`headrace plan`: how many replicas given traffic needs, by simulation with measured times. No server, GPU or cluster.

The real scheduler decides. Seconds come from the service's predictor of iteration times, fitted to timings from the
replica's machine.
"""
