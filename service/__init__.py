"""Headrace, an OpenAI-compatible LLM inference microservice: one process, an HTTP app and an in-process engine.

`main.py` makes every object once and joins them; each package's docstring says what it owns and which thread
may call it. `core` holds the nouns and knows nobody.
"""
