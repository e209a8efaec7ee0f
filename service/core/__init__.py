"""The nouns: request, sequence, plan, result, events, statistics, clock; and a warning that cannot fill the log.

Standard library only; imported by all."""
