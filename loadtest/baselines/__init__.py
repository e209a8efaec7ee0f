"""Serving systems behind one interface, for the papers' comparisons: ours, and what each paper compared itself with.

They share our model, kernels and block pool, so that a difference is the policy's alone; transformers' own loops
stand beside them.
"""
