"""A model that is made and loaded in a moment."""

from loadtest.dummy_model import LlamaShape

LLAMA_TINY = LlamaShape("llama-tiny", 64, 128, 2, 4, 2, 300)
