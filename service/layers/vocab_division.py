"""How a vocabulary is divided among ranks. Imports no torch: what cannot be divided is refused before torch is
loaded."""

_ALIGNMENT = 16
"""Each rank's first id is a multiple of this: four ids share one draw of noise (kernels/gumbel_argmax.py), and a GPU
reads rows of logits best if they begin at such multiples."""


def vocab_share_size(vocab_size: int, num_ranks: int) -> int:
    """Ids of every rank except the last, which may have fewer; its weights have the same number of rows."""
    return -(-vocab_size // (num_ranks * _ALIGNMENT)) * _ALIGNMENT
