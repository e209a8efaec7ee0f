"""Serving systems behind one interface, for the papers' comparisons: ours, and those that the papers compare with.

They share our model, kernels and block pool, so that only policies make a difference. transformers' own loops are
included too.
"""
