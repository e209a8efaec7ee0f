"""Output that must match a grammar, by llguidance: compile (event loop and a pool), match and mask (engine thread)."""
