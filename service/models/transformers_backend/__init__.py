"""Architectures without a file of their own, computed by transformers' modules over our cache and our linears.

The model is built by transformers without memory (on the meta device), and runs one probe step there, to find out what
its layers ask for. Then it gets our attention and our linears. Imported only if a model needs it: that takes seconds,
and transformers is an optional dependency.
"""
