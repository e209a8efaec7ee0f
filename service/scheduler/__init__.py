"""Who runs next: plain decisions over the request pool and the block tables. Engine thread; no tensors.

One scheduler asks small policies, one question each; no policy inherits from another.
"""
