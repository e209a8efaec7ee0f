"""How a vocabulary is divided among ranks. Without torch: what cannot be divided is refused before torch is loaded."""

_ALIGNMENT = 16
"""Of a rank's first id: four ids get their noise together (kernels/gumbel_argmax.py), and a GPU reads rows of logits
best that begin at such multiples."""


def vocab_share_size(vocab_size: int, num_ranks: int) -> int:
    """Ids of every rank but the last one, which may have fewer; its weights have as many rows all the same."""
    return -(-vocab_size // (num_ranks * _ALIGNMENT)) * _ALIGNMENT
