"""How the quickstart model was made, a small chat model about Headrace: its corpus, its training and its evaluation.

`python -m loadtest.quickstart.train` makes the files in `service/quickstart/model`, which the service then loads like
any other Llama model.
"""
