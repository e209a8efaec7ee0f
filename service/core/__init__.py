"""The nouns: request, sequence, plan, result, events, statistics, clock. Standard library only; imported by all."""
