"""A body -> a checked call and its engine requests: wire shapes, limits, prompts, grammars."""
