"""Our fine-tuning beside PEFT's on one machine, in one run: tokens per second, time per step, memory.

`python -m loadtest.compare_peft`: on a GPU, dummy weights of Llama-3-8B's shape in bf16, every token trained:

    4 x 2048   rank 16, all linears, four micro-batches a step; PEFT has them in one batch, without checkpointing
    1 x 256    rank 64, q and v: FineInfer's setting

PEFT computes through transformers with torch's SDPA and torch's fused AdamW. The two run one after the other, each in
its own process. Takes about three minutes. `--tiny`: a smoke test with a model of 100 KB, in this process, also on a
CPU (fp32).
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from loadtest.model_shapes import LLAMA_8B, shape_folder
from loadtest.table import aligned, format_figure

TINY_SHAPE: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}

Figures = dict[str, float]
"""tokens_per_s, step_ms, peak_gib, loss; ours also has the ms of each kind of layer step."""


@dataclass(frozen=True, slots=True)
class Case:
    """targets: linears with an adapter; empty: all. num_sequences: per optimizer step; ours has one per micro-batch."""

    num_sequences: int
    num_tokens: int
    rank: int
    targets: tuple[str, ...]
    num_steps: int

    def __str__(self) -> str:
        return f"{self.num_sequences} x {self.num_tokens}, rank {self.rank}, {', '.join(self.targets) or 'all linears'}"

    def token_ids(self, vocab_size: int) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Token ids of all steps, untimed ones included, int32 [steps * sequences, tokens]."""
        shape = ((WARM_STEPS + self.num_steps) * self.num_sequences, self.num_tokens)
        return np.random.default_rng(0).integers(3, vocab_size, shape, dtype=np.int32)


WARM_STEPS = 2
CASES = (Case(4, 2048, 16, (), 5), Case(1, 256, 64, ("q_proj", "v_proj"), 20))
TINY_CASES = (Case(2, 64, 4, (), 2), Case(1, 16, 8, ("q_proj", "v_proj"), 2))


def ours(case: Case, folder: Path) -> Figures:
    """Measured with this service's trainer, over weights as they are served."""
    from loadtest.bench.dummy_training import dummy_model, new_training
    from service.models.model_config import load_model_config

    device, config = _device(), load_model_config(folder)
    model = dummy_model(folder, _dtype(device), device, case.num_tokens)
    training = new_training(
        model,
        case.token_ids(config.vocab_size),
        batch_size=case.num_sequences,
        rank=case.rank,
        targets=case.targets,
    )
    layer_steps = case.num_sequences * training.layer_steps_per_iteration
    for _ in range(WARM_STEPS - 1):
        training.advance(layer_steps)
    kinds = _layer_step_ms(training, config.num_layers, case.num_sequences, device)
    training.take_news()
    return {**_timed(case, lambda: training.advance(layer_steps), lambda: _last_loss(training), device), **kinds}


def pefts(case: Case, folder: Path) -> Figures:
    """Measured with PEFT and transformers."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    device = _device()
    config = AutoConfig.from_pretrained(folder)
    with torch.device(device):
        base = AutoModelForCausalLM.from_config(config, dtype=_dtype(device), attn_implementation="sdpa")
    targets = list(case.targets) or "all-linear"
    model = get_peft_model(
        base, LoraConfig(r=case.rank, lora_alpha=2 * case.rank, target_modules=targets, lora_dropout=0.0)
    )
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    batches = iter(torch.from_numpy(case.token_ids(config.vocab_size)).long().split(case.num_sequences))
    losses: list[torch.Tensor] = []

    def step() -> None:
        ids = next(batches).to(device)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    for _ in range(WARM_STEPS):
        step()
    return _timed(case, step, lambda: float(losses[-1]), device)


SIDES: Mapping[str, Callable[[Case, Path], Figures]] = {"headrace": ours, "peft": pefts}


def _timed(case: Case, step: Callable[[], object], last_loss: Callable[[], float], device: torch.device) -> Figures:
    """step: runs or launches one optimizer step. last_loss: waits for all steps and returns the last loss."""
    _synchronize(device)
    began_s = time.perf_counter()
    for _ in range(case.num_steps):
        step()
    loss = last_loss()
    _synchronize(device)
    seconds = time.perf_counter() - began_s
    return {
        "tokens_per_s": case.num_steps * case.num_sequences * case.num_tokens / seconds,
        "step_ms": 1e3 * seconds / case.num_steps,
        "peak_gib": _peak_bytes(device) / (1 << 30),
        "loss": loss,
    }


def _last_loss(training: Any) -> float:
    reports = training.take_news().reports
    return float(reports[-1].loss)


def _layer_step_ms(training: Any, num_layers: int, num_micro_batches: int, device: torch.device) -> Figures:
    """Mean ms of each kind of layer step: one forward, one part of the loss, one backward, the end of a micro-batch.
    Waits for each one."""
    num_loss_steps = training.layer_steps_per_iteration - 2 * num_layers - 1
    kinds = ["forward"] * num_layers + ["loss"] * num_loss_steps + ["backward"] * num_layers + ["end"]
    seconds = dict.fromkeys(kinds, 0.0)
    for kind in kinds * num_micro_batches:
        _synchronize(device)
        began_s = time.perf_counter()
        training.advance(1)
        _synchronize(device)
        seconds[kind] += time.perf_counter() - began_s
    return {f"{kind}_ms": 1e3 * seconds[kind] / kinds.count(kind) / num_micro_batches for kind in seconds}


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(device: torch.device) -> int:
    """Peak memory of the device, weights included. On a CPU: of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def compare(cases: Sequence[Case], folder: Path, run: Callable[[partial[Figures]], Figures]) -> list[dict[str, Any]]:
    results = []
    for case in cases:
        result: dict[str, Any] = {"case": str(case)}
        for name, side in SIDES.items():
            result[name] = run(partial(side, case, folder))
        result["ratio"] = result["headrace"]["tokens_per_s"] / result["peft"]["tokens_per_s"]
        results.append(result)
    return results


def in_its_own_process(side: partial[Figures]) -> Figures:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(side).result()


def table(results: Sequence[Mapping[str, Any]]) -> str:
    rows = [["case", "tokens/s", "peft's", "ratio", "step, ms", "peft's", "peak GiB", "peft's"]]
    for result in results:
        pairs = [result[side][key] for key in ("tokens_per_s", "step_ms", "peak_gib") for side in SIDES]
        figures = [*pairs[:2], result["ratio"], *pairs[2:]]
        rows.append([result["case"], *map(format_figure, figures)])
    return aligned(rows)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.compare_peft", description=__doc__)
    parser.add_argument("--tiny", action="store_true", help="a model of 100 KB; needs no GPU")
    chosen = parser.parse_args(arguments)
    if not chosen.tiny and not torch.cuda.is_available():
        parser.error("no GPU found; --tiny runs on a CPU")
    if chosen.tiny:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(TINY_SHAPE), encoding="utf-8")
            results = compare(TINY_CASES, Path(folder), lambda side: side())
    else:
        results = compare(CASES, shape_folder(LLAMA_8B), in_its_own_process)
    print(table(results), file=sys.stderr)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
