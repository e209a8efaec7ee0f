"""The quickstart model: a small chat model about Headrace, its corpus, its training and its evaluation.

Nothing of the server imports this package; `python -m service.quickstart.train` makes the files in `model/`
that the server then loads like any other Llama model.
"""
