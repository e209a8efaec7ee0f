"""The bodies of POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them."""

from __future__ import annotations

from pydantic import ConfigDict

from service.protocol.generation import WireRequest


class LoadAdapter(WireRequest):
    """lora_path: below the folder of `--lora-dir`. load_inplace: replace the adapter of that name."""

    model_config = ConfigDict(extra="forbid")

    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadAdapter(WireRequest):
    """lora_int_id: vLLM's clients may send it; it is ignored."""

    model_config = ConfigDict(extra="forbid")

    lora_name: str
    lora_int_id: int | None = None
