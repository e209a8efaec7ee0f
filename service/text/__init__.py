"""Ids <-> text: tokenizer, chat template, incremental detokenizer, stop strings; reasoning and tool calls in a text.

No engine, no torch. Tokenizer and template may be used from several threads at once. Detokenizers, stop matchers and
what tells a text apart belong to one choice each and live on the event loop.
"""
