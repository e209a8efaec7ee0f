"""`headrace plan`: how many replicas a traffic needs, by simulation over measured times. No server, no GPU, no cluster.

The real scheduler decides; seconds are those of the service's own law of an iteration's time, fitted to timings of the
replica's machine.
"""
