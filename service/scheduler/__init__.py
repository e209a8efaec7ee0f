"""Who runs next. Plain decisions over the request pool and the block tables; engine thread; no tensors.

One scheduler asks small policies, one question each; no policy inherits from another.
"""
