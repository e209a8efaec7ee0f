"""Architectures without a file of their own, computed by transformers' modules over our cache and our linears.

transformers is built without memory (on the meta device), computes one step of nothing there, so that it is known what
its layers ask for, and is then given our attention and our linears. Imported only where a model needs it: that takes
seconds, and transformers is an optional dependency.
"""
