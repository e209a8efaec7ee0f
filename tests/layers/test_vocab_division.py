from __future__ import annotations

import subprocess
import sys

import pytest

from service.layers.vocab_division import vocab_share_size


@pytest.mark.parametrize("vocab_size", [16, 17, 300, 1536, 128_256])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_shares_are_aligned_and_hold_the_vocabulary_with_less_than_one_alignment_a_rank_to_spare(
    vocab_size: int, num_ranks: int
):
    size = vocab_share_size(vocab_size, num_ranks)
    assert size % 16 == 0
    assert vocab_size <= size * num_ranks < vocab_size + 16 * num_ranks


def test_torch_is_not_needed():
    program = "import sys, service.models.rank_division; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
