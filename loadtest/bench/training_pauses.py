"""How long a training delays serving, and how soon the trained adapter can be called.

`python -m loadtest.bench.training_pauses [FOLDER]`: by default the shape of Llama-3-8B, with dummy weights, on this
machine's device; micro-batches of 2,048 tokens, rank 16, all linears.

    layer step      a new request waits at most for one of these, or for several that together take about PIECE_S, if
                    the training's state stays on the device
    state to host   at a checkpoint: parameters and moments are copied, and everything waits
    callable        after the last step: the state is copied, the adapter is written, synced, read again and packed for
                    a slot; a service also writes to its database (some ms)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from loadtest.bench.dummy_training import dummy_model, new_training
from loadtest.model_shapes import LLAMA_8B, shape_folder
from loadtest.table import aligned, format_figure
from service.finetune.export import export_adapter
from service.finetune.lora_training import LoraTraining
from service.finetune.training_state import TrainingState
from service.lora.adapter_folder import read_adapter
from service.lora.adapter_layout import AdapterLayout
from service.models.model_config import load_model_config

_RANK = 16
_STATES = 5
_BLOCK_ELEMENTS = 1 << 20
"""Elements of a KV block, 2 MB in 16 bits; at least one row of the model's largest matrix."""
Made = TypeVar("Made")


def measure(folder: Path, num_tokens: int) -> dict[str, float]:
    """Milliseconds, by what was measured."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = load_model_config(folder)
    model = dummy_model(folder, torch.bfloat16, device, num_tokens)
    ids = np.random.default_rng(0).integers(3, config.vocab_size, (8, num_tokens), dtype=np.int32)
    training = new_training(model, ids, batch_size=1, rank=_RANK, targets=())
    for _ in range(4):  # not counted: kernels are compiled, CUDA graphs are captured
        training.advance(training.layer_steps_per_iteration)
    _synchronize()
    steps_ms = [_timed(lambda: _advance(training))[0] for _ in range(2 * training.layer_steps_per_iteration)]
    states_ms = [_timed(training.state)[0] for _ in range(_STATES)]
    while not training.is_over:
        training.advance(training.layer_steps_per_iteration)
        training.take_news()
    state_ms, state = _timed(training.state)
    with tempfile.TemporaryDirectory() as made:
        export_ms, _ = _timed(lambda: export_adapter(Path(made), state, 2.0 * _RANK, "dummy"))
        load_ms, _ = _timed(lambda: _load(Path(made), state, device))
    return {
        "layer step, median": statistics.median(steps_ms),
        "layer step, longest": max(steps_ms),
        "state to host, first": states_ms[0],
        "state to host, median": statistics.median(states_ms),
        "callable: adapter written": export_ms,
        "callable: adapter loaded": load_ms,
        "callable, all": state_ms + export_ms + load_ms,
    }


def _advance(training: LoraTraining) -> None:
    training.advance(1)
    _synchronize()


def _load(folder: Path, state: TrainingState, device: torch.device) -> None:
    sites = state.layout.sites
    weights = read_adapter(folder, sites, _RANK, torch.bfloat16)
    layout = AdapterLayout(sites, _RANK, _BLOCK_ELEMENTS, torch.bfloat16)
    layout.pack(weights, pinned=device.type == "cuda").blocks.to(device)
    _synchronize()


def _timed(run: Callable[[], Made]) -> tuple[float, Made]:
    """Milliseconds, and the result of `run`."""
    began_s = time.perf_counter()
    made = run()
    return 1e3 * (time.perf_counter() - began_s), made


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.training_pauses", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=shape_folder(LLAMA_8B))
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per micro-batch; default: 2048")
    chosen = parser.parse_args(arguments)
    figures = measure(chosen.folder, chosen.tokens)
    rows = [["", "ms"], *([name, format_figure(ms)] for name, ms in figures.items())]
    print(aligned(rows), file=sys.stderr)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
