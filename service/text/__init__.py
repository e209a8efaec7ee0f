"""Ids <-> text: tokenizer, chat template, incremental detokenizer, stop strings. No engine, no torch.

Tokenizer and template may be used from several threads at once; detokenizers and stop matchers belong to one
stream each and live on the event loop.
"""
