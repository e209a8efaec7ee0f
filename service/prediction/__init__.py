"""Predicts how long iterations, transfers and preemptions take, from timings at start-up and from the traffic.

Engine thread; no tensors. The scheduler and the engine ask; nothing here decides.
"""
