"""Headrace, an OpenAI-compatible LLM inference microservice: one process, an HTTP app and an in-process engine.

`main.py` is one run of the process; `composition` makes every object once and joins them. Each package's docstring
says what it owns and which thread may call it. `core` holds the nouns and imports no other package but `errors`.
"""
