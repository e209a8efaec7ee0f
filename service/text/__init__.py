"""Ids <-> text: tokenizer, chat template, incremental detokenizer, stop strings; reasoning and tool calls in a text.

No engine, no torch. Tokenizer and template may be used from several threads at once. Detokenizers, stop matchers and
parsers of reasoning and calls belong to one choice each and are used on the event loop.
"""
