from __future__ import annotations

from itertools import combinations

from service.core.adapter import Adapter
from service.core.request import Request
from service.core.sampling_params import SamplingParams


def request(salt: str, digest: str | None = None, adapter_id: int = 1) -> Request:
    adapter = None if digest is None else Adapter("poet", adapter_id, 4, digest)
    return Request("r", (1,), SamplingParams(max_tokens=1), 0.0, salt, adapter=adapter)


def test_prefixes_are_apart_by_salt_and_by_weights_whatever_salt_a_client_writes() -> None:
    digests, salts = (None, "ab", "cd"), ("", ":", "ab:", ":ab:", "ab", "cd:x")
    every = [request(salt, digest).prefix_salt for digest in digests for salt in salts]
    assert all(a != b for a, b in combinations(every, 2))


def test_adapters_of_the_same_weights_share_prefixes() -> None:
    assert request("x", "ab", 1).prefix_salt == request("x", "ab", 2).prefix_salt
