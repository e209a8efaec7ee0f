import pytest
import torch

from service.models.transformers_backend.attention import rows_of_heads


@pytest.mark.parametrize("num_heads", [1, 3])
def test_heads_become_rows_whose_last_two_dims_are_dense_however_they_lay(num_heads: int):
    """One head's own stride may be anything: torch calls it contiguous, and the kernels look at it."""
    num_tokens, dim = 5, 4
    dense = torch.randn(1, num_heads, num_tokens, dim)
    of_tokens = torch.randn(1, num_tokens, num_heads, dim).transpose(1, 2)
    of_dims = torch.randn(1, num_heads, dim, num_tokens).transpose(2, 3)
    odd = torch.randn(num_tokens * 7 * dim).as_strided((1, 1, num_tokens, dim), (1, 3, 7 * dim, 1))
    for heads in [dense, of_tokens, of_dims, *([odd] if num_heads == 1 else [])]:
        rows = rows_of_heads(heads)
        assert rows.stride()[1:] == (dim, 1)
        assert torch.equal(rows, heads[0].transpose(0, 1))
