"""Model folders to runners, with settings that tests like."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from service.config import CacheConfig, LoraConfig, ModelSource
from service.runner.choices.timer import Timer
from service.runner.load import LoadedModel, OnProgress, load_executor


def source(
    folder: Path,
    dtype: Literal["auto", "bfloat16", "float32"] = "float32",
    load_format: Literal["auto", "dummy"] = "auto",
    max_model_len: int | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    quantization: Literal["fp8"] | None = None,
) -> ModelSource:
    return ModelSource(
        model=str(folder),
        revision=None,
        tokenizer=None,
        chat_template=None,
        load_format=load_format,
        dtype=dtype,
        device=device,
        max_model_len=max_model_len,
        seed=0,
        quantization=quantization,
    )


def load(
    folder: Path,
    dtype: Literal["auto", "bfloat16", "float32"] = "float32",
    block_size: int = 16,
    memory_bytes: int | None = 64 << 20,
    on_progress: OnProgress | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
    enforce_eager: bool = False,
    max_num_seqs: int = 64,
    swap_bytes: int = 0,
    max_num_batched_tokens: int = 2048,
    choices_file: Path | None = None,
    timer: Timer | None = None,
    lora: LoraConfig | None = None,
    quantization: Literal["fp8"] | None = None,
    kv_cache_dtype: Literal["auto", "fp8"] = "auto",
) -> LoadedModel:
    """Everything is prepared, also what a service would leave for its idle time."""
    cache = CacheConfig(
        block_size=block_size,
        memory_utilization=0.9,
        memory_bytes=memory_bytes,
        swap_bytes=swap_bytes,
        dtype=kv_cache_dtype,
    )
    loaded = load_executor(
        source(folder, dtype, device=device, quantization=quantization),
        folder,
        cache,
        max_num_seqs,
        max_num_batched_tokens,
        on_progress,
        enforce_eager=enforce_eager,
        choices_file=choices_file,
        timer=timer,
        lora=lora,
    )
    while loaded.idle_work.do_some():
        pass
    return loaded
