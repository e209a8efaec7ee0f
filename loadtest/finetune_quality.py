"""Quality of our fine-tuning beside PEFT's: the same text in the same order, from the same initial A and B.

`python -m loadtest.finetune_quality MODEL_FOLDER TEXT_FILE...` cuts the texts into pieces of equal length and holds
back every fourth. transformers then computes both adapters' loss on the held-back pieces. bf16, rank 16 on all linears,
AdamW in fp32. A CPU takes minutes for a model of 135 million parameters.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from loadtest.table import aligned
from service.finetune.dataset import Example
from service.finetune.export import export_adapter
from service.finetune.hyperparameters import Hyperparameters
from service.finetune.lora_parameters import first_state
from service.finetune.lora_training import LoraTraining
from service.finetune.packing import TrainingData, training_order
from service.finetune.trainable_model import parameter_layout
from service.models.causal_lm import CausalLM
from service.models.model_config import load_model_config
from service.models.registry import build_model
from service.models.weight_loader import load_weights
from service.text.tokenizer import Tokenizer

HELD_BACK = 4
"""One piece in this many is held back."""


@dataclass(frozen=True, slots=True)
class Pieces:
    trained: Sequence[Example]
    held_back: Sequence[Example]


def pieces_of(folder: Path, texts: Sequence[str], length: int, most: int) -> Pieces:
    """At most `most` pieces of `length` tokens each. Every token but a piece's first has a loss."""
    tokenizer = Tokenizer.from_folder(folder)
    ids = [token_id for text in texts for token_id in tokenizer.encode(text, add_special_tokens=False)]
    starts = range(0, min(len(ids) - length + 1, most * length), length)
    examples = [Example(np.array(ids[at : at + length], np.int32), np.arange(length) > 0) for at in starts]
    if len(examples) < HELD_BACK:
        raise SystemExit(f"the texts have {len(ids)} tokens; {HELD_BACK * length} are needed")
    held_back = examples[HELD_BACK - 1 :: HELD_BACK]
    return Pieces([each for at, each in enumerate(examples, 1) if at % HELD_BACK], held_back)


def train_here(
    folder: Path, pieces: Pieces, chosen: Hyperparameters, dtype: torch.dtype, begin: Path, out: Path
) -> None:
    """begin: folder for the adapter before training. out: folder for the trained one."""
    model = _served_model(folder, dtype, chosen.max_length)
    state = first_state(parameter_layout(model, chosen.targets, chosen.rank), chosen.seed)
    export_adapter(begin, state, chosen.alpha, str(folder))
    data = TrainingData(
        pieces.trained,
        batch_size=chosen.batch_size,
        micro_batch_tokens=chosen.micro_batch_tokens,
        num_epochs=chosen.num_epochs,
        seed=chosen.seed,
    )
    training = LoraTraining(1, model, data, chosen, state, steps_per_checkpoint=data.num_steps)
    while not training.is_over:
        training.advance(training.layer_steps_per_iteration)
        training.take_news()
    export_adapter(out, training.state(), chosen.alpha, str(folder))


def train_with_peft(
    folder: Path, pieces: Pieces, chosen: Hyperparameters, dtype: torch.dtype, begin: Path, out: Path
) -> None:
    model = _peft_model(folder, begin, dtype, is_trainable=True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=chosen.learning_rate, weight_decay=chosen.weight_decay)
    num_examples, step = len(pieces.trained), 0
    for epoch in range(chosen.num_epochs):
        order = training_order(chosen.seed, epoch, num_examples).tolist()
        for first in range(0, num_examples, chosen.batch_size):
            batch = [pieces.trained[at] for at in order[first : first + chosen.batch_size]]
            _mean_loss(model, batch).backward()
            step += 1
            for group in optimizer.param_groups:
                group["lr"] = chosen.learning_rate_at(step, chosen.num_steps(num_examples))
            torch.nn.utils.clip_grad_norm_(trained, chosen.max_gradient_norm)
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(out)


@torch.no_grad()
def loss_of(folder: Path, adapter: Path, pieces: Pieces, dtype: torch.dtype) -> float:
    """Mean loss per token over the held-back pieces."""
    model = _peft_model(folder, adapter, dtype, is_trainable=False)
    return float(np.mean([float(_mean_loss(model, [example])) for example in pieces.held_back]))


def _served_model(folder: Path, dtype: torch.dtype, max_length: int) -> CausalLM:
    config, cpu = load_model_config(folder), torch.device("cpu")
    model = build_model(config)
    model.materialize(dtype, cpu)
    load_weights(model, folder)
    model.build_positions(max_length, cpu)
    model.settle()
    return model


def _peft_model(folder: Path, adapter: Path, dtype: torch.dtype, *, is_trainable: bool) -> Any:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return PeftModel.from_pretrained(base, adapter, is_trainable=is_trainable)


def _mean_loss(model: Any, examples: Sequence[Example]) -> torch.Tensor:
    """Mean loss over all tokens. All examples have the same length."""
    ids = torch.from_numpy(np.stack([example.token_ids for example in examples])).long()
    logits = model(input_ids=ids).logits[:, :-1]
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def compare(
    folder: Path, texts: Sequence[str], chosen: Hyperparameters, dtype: torch.dtype, most: int
) -> dict[str, float]:
    pieces = pieces_of(folder, texts, chosen.max_length, most)
    figures: dict[str, float] = {"steps": chosen.num_steps(len(pieces.trained)), "held back": len(pieces.held_back)}
    with tempfile.TemporaryDirectory() as work:
        begin, ours, pefts = (Path(work, name) for name in ("begin", "ours", "pefts"))
        for path in (begin, ours):
            path.mkdir()
        for name, train, out in (("ours", train_here, ours), ("peft", train_with_peft, pefts)):
            began_s = time.monotonic()
            train(folder, pieces, chosen, dtype, begin, out)
            figures[f"{name}: s"] = time.monotonic() - began_s
        for name, adapter in (("before", begin), ("ours", ours), ("peft", pefts)):
            figures[f"{name}: loss"] = loss_of(folder, adapter, pieces, dtype)
    return figures | {"apart": figures["ours: loss"] / figures["peft: loss"] - 1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("--length", type=int, default=128, help="tokens per piece; default: 128")
    parser.add_argument("--most", type=int, default=64, help="the most pieces; default: 64")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    chosen = parser.parse_args()
    hyperparameters = Hyperparameters(
        learning_rate=1e-3,
        num_epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        max_length=chosen.length,
        micro_batch_tokens=chosen.batch_size * chosen.length,
    )
    texts = [path.read_text(encoding="utf-8") for path in chosen.texts]
    figures = compare(chosen.model, texts, hyperparameters, getattr(torch, chosen.dtype), chosen.most)
    print(aligned([list(figures), [f"{figure:.5g}" for figure in figures.values()]]))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
