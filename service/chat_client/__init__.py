"""`headrace chat`: a terminal client for a running server. The chat is in the foreground, batches of prompts run in the
background, as in FineInfer's command line. Speaks HTTP only and imports nothing of the server; uses the standard
library and, if installed (extra `chat`), prompt_toolkit and rich."""
