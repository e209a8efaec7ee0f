"""What choices are valid for: all that the timings depended on, and all that makes equal choices compute the same."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import torch

from service.core.version import distribution_version
from service.models.causal_lm import CausalLM

_GPU_LIBRARIES, _CPU_LIBRARIES = ("torch", "triton"), ("torch", "numba")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class MadeFor:
    """device: the name of its model. num_threads: of torch's operations on a CPU; 0 on a GPU. libraries: the versions
    of those that compute. weights: how many weights there are of each shape (`Projection.shape_name`)."""

    headrace: str
    device: str
    num_threads: int
    libraries: Mapping[str, str]
    architecture: str
    weights: Mapping[str, int]
    dtype: Literal["bfloat16", "float32"]
    max_num_seqs: int
    max_num_batched_tokens: int
    enforce_eager: bool
    deterministic: bool = False

    @classmethod
    def of(
        cls,
        model: CausalLM,
        architecture: str,
        device: torch.device,
        dtype: torch.dtype,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        enforce_eager: bool,
        deterministic: bool = False,
    ) -> MadeFor:
        """model: need not have memory yet."""
        is_gpu = device.type == "cuda"
        return cls(
            headrace=distribution_version(),
            device=torch.cuda.get_device_name(device) if is_gpu else _cpu_name(),
            num_threads=0 if is_gpu else torch.get_num_threads(),
            libraries={name: _version(name) for name in (_GPU_LIBRARIES if is_gpu else _CPU_LIBRARIES)},
            architecture=architecture,
            weights=dict(Counter(each.shape_name for each in model.projections)),
            dtype="bfloat16" if dtype is torch.bfloat16 else "float32",
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enforce_eager=enforce_eager,
            deterministic=deterministic,
        )

    def difference(self, there: MadeFor) -> str | None:
        """The first field that differs, with both values; None if none does."""
        for field in fields(self):
            mine, others = getattr(self, field.name), getattr(there, field.name)
            if mine != others:
                return f"{field.name} is {_shown(mine)} in the file, but {_shown(others)} here"
        return None


def _shown(value: object) -> str:
    return ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, Mapping) else repr(value)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _cpu_name(cpuinfo: Path = _CPU_INFO) -> str:
    """The processor's model, and what distinguishes its generations, as far as the system says; else its
    architecture."""
    facts = dict[str, str]()
    with suppress(OSError):
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    names = ("model name", "cpu family", "model", "stepping")
    return " ".join(facts[name] for name in names if facts.get(name)) or platform.machine()
