"""An adapter's weights as a file that one process writes and others read. Not a user's file, so it is not checked as
adapter_folder.py checks one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from service.lora.adapter_folder import AdapterWeights, SiteWeights
from service.lora.tensor_file import opened_tensors, write_tensors

_DIGEST = "digest"  # cannot be a module's name: these have dots
_A, _B = ".a", ".b"


def write_weights(file: BinaryIO, weights: AdapterWeights) -> None:
    tensors = {name + _A: site.a for name, site in weights.sites.items()}
    tensors |= {name + _B: site.b for name, site in weights.sites.items()}
    scales = {name: site.scale.hex() for name, site in weights.sites.items()}
    write_tensors(file, tensors, {**scales, _DIGEST: weights.digest})


def read_weights(file: Path) -> AdapterWeights:
    """Raises AdapterError if it is not such a file."""
    with opened_tensors(file, sys.maxsize, sys.maxsize) as stored:
        facts = dict(stored.metadata)
        digest = str(facts.pop(_DIGEST))
        sites = {
            name: SiteWeights(stored.read(name + _A), stored.read(name + _B), float.fromhex(str(scale)))
            for name, scale in facts.items()
        }
    return AdapterWeights(sites, digest)
