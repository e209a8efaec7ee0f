"""`headrace chat`: a terminal's client of a running server. Chat in the foreground, batches of prompts behind it, as
FineInfer's command line has them. Speaks HTTP only and imports nothing of the server; standard library, and where they
are installed (extra `chat`) prompt_toolkit and rich."""
