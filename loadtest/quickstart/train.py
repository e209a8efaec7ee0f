"""Trains the quickstart model's tokenizer and weights from the corpus.

    python -m loadtest.quickstart.train --out service/quickstart/model

The same seed gives the same text and the same initial weights; the last digits of the loss differ between
machines. Uses a GPU if there is one. Writes the model folder, `training.json` in it, and prints the evaluation.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from loadtest.quickstart.chat_format import BOS, END, PAD, chat_tokenizer, token_id, train_tokenizer
from loadtest.quickstart.corpus import Corpus, load_corpus
from loadtest.quickstart.dialogues import (
    RowBuilder,
    Rows,
    encode_turns,
    questions_and_answers,
    tokenizer_texts,
)
from loadtest.quickstart.evaluate import FolderAsker, Score, evaluate, report
from loadtest.quickstart.question_sets import question_sets

CONTEXT = 2048
VOCABULARY = 3072


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a training run apart from the corpus."""

    seed: int = 7
    steps: int = 6000
    pairs: int = 360_000
    warmup_steps: int = 200
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    dropout: float = 0.2
    read_weight: float = 0.2
    tokens_per_step: int = 49_152


@dataclass(frozen=True)
class Shelf:
    """Rows of one length, and how often a step takes its batch from them."""

    rows: Rows
    share: float
    batch: int


def model_config(tokenizer: Tokenizer) -> LlamaConfig:
    """About five million parameters; eight query heads over four KV heads."""
    return LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        bos_token_id=token_id(tokenizer, BOS),
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    )


def build_shelves(corpus: Corpus, tokenizer: Tokenizer, recipe: Recipe, pairs: list[tuple[str, str]]) -> list[Shelf]:
    """Single questions, short conversations, and conversations that fill the context."""
    rng = random.Random(recipe.seed + 1)
    builder = RowBuilder(corpus, tokenizer, encode_turns(tokenizer, pairs), recipe.read_weight, rng)
    plan = (
        (128, 1, 0.72, len(pairs)),
        (384, 6, 0.20, len(pairs) // 8),
        (CONTEXT, 64, 0.08, len(pairs) // 120),
    )
    return [
        Shelf(builder.build(count, length, turns), share, max(1, recipe.tokens_per_step // length))
        for length, turns, share, count in plan
    ]


def learning_rate(step: int, recipe: Recipe) -> float:
    """Linear warm-up, then a cosine to zero."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    return recipe.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def add_dropout(model: LlamaForCausalLM, probability: float) -> None:
    """Drops parts of the embedding and of each MLP's and attention's result while the model is in training mode.
    Call it on a model that will be trained and saved, never on one that is served."""

    def drop(module: nn.Module, _: object, output: torch.Tensor) -> torch.Tensor:
        return functional.dropout(output, probability, module.training)

    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.mlp.register_forward_hook(drop)
        layer.self_attn.o_proj.register_forward_hook(drop)


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW; vectors, which are the norms, do not decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": recipe.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=(0.9, 0.98))


def weighted_loss(model: nn.Module, rows: Rows) -> torch.Tensor:
    """Cross entropy of each next token, averaged by the tokens' weights."""
    logits = model(input_ids=rows.ids, use_cache=False).logits[:, :-1]
    targets, weights = rows.ids[:, 1:], rows.weights[:, 1:].float()
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def train_model(model: LlamaForCausalLM, shelves: list[Shelf], recipe: Recipe, device: str) -> None:
    """Run all steps, in place. Prints the loss now and then."""
    optimizer = make_optimizer(model, recipe)
    on_device = [Rows(shelf.rows.ids.to(device).long(), shelf.rows.weights.to(device)) for shelf in shelves]
    rng = random.Random(recipe.seed + 2)
    generator = torch.Generator(device).manual_seed(recipe.seed)
    began = time.monotonic()
    model.train()
    for step in range(recipe.steps):
        index = rng.choices(range(len(shelves)), [shelf.share for shelf in shelves])[0]
        rows = on_device[index]
        picked = torch.randint(len(rows.ids), (shelves[index].batch,), generator=generator, device=device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = weighted_loss(model, Rows(rows.ids[picked], rows.weights[picked]))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 100 == 0 or step == recipe.steps - 1:
            print(f"step {step} loss {loss.item():.4f} seconds {time.monotonic() - began:.1f}", flush=True)


def save(model: LlamaForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Writes weights in bfloat16, configurations and tokenizer, loadable by transformers."""
    model.bfloat16().save_pretrained(folder)
    GenerationConfig(
        bos_token_id=token_id(tokenizer, BOS),
        eos_token_id=token_id(tokenizer, END),
        pad_token_id=token_id(tokenizer, PAD),
    ).save_pretrained(folder)
    chat_tokenizer(tokenizer, CONTEXT).save_pretrained(folder, save_jinja_files=False)
    _name_portable_class(folder / "tokenizer_config.json")


def record(folder: Path, recipe: Recipe, parameters: int, device: str, scores: Sequence[Score]) -> None:
    """Writes training.json: how the weights beside it were made, and how they scored."""
    facts = {
        "recipe": asdict(recipe),
        "parameters": parameters,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
        "scores": {score.name: {"right": score.asked - len(score.wrong), "asked": score.asked} for score in scores},
    }
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def run(recipe: Recipe, folder: Path) -> list[Score]:
    """One training run: tokenizer, weights, files in the folder, evaluation of what was written."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    corpus = load_corpus()
    pairs = questions_and_answers(corpus, recipe.pairs, random.Random(recipe.seed))
    tokenizer = train_tokenizer(tokenizer_texts(corpus, recipe.pairs // 3, random.Random(recipe.seed)), VOCABULARY)
    model = LlamaForCausalLM(model_config(tokenizer))
    model.to(device)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(
        f"{len(corpus.topics)} topics, {len(pairs)} questions, {parameters} parameters on {device}",
        flush=True,
    )
    add_dropout(model, recipe.dropout)
    train_model(model, build_shelves(corpus, tokenizer, recipe, pairs), recipe, device)
    folder.mkdir(parents=True, exist_ok=True)
    save(model, tokenizer, folder)
    scores = evaluate(FolderAsker(folder, device), question_sets(corpus))
    record(folder, recipe, parameters, device, scores)
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="train the quickstart model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    for field in fields(Recipe):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default, help="default %(default)s")
    options = vars(parser.parse_args(arguments))
    folder = options.pop("out")
    print(report(run(Recipe(**options), folder)))
    return 0


def _name_portable_class(tokenizer_config: Path) -> None:
    """Names the tokenizer class by the name that every transformers release knows."""
    settings = json.loads(tokenizer_config.read_text(encoding="utf-8"))
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    tokenizer_config.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
