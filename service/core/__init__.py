"""The nouns: request, sequence, plan, result, events, statistics, clock; and a rate-limited warning.

Standard library only; imported by all."""
