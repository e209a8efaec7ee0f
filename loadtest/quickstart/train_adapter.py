"""Trains the quickstart model's example adapter with PEFT: the same answers, told by a pirate.

    python -m loadtest.quickstart.train_adapter --out service/quickstart/adapters/pirate

Minutes on one CPU core. The same seed gives the same text; the last digits of the loss differ between machines. Writes
PEFT's folder, `training.json` in it, and prints the evaluation.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import peft
import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoModelForCausalLM

from loadtest.quickstart.corpus import Corpus, load_corpus
from loadtest.quickstart.dialogues import RowBuilder, Rows, encode_turns, questions_and_answers
from loadtest.quickstart.evaluate import FolderAsker, Score, evaluate, report
from loadtest.quickstart.pirate_speech import pirate
from loadtest.quickstart.question_sets import QuestionSet, question_sets
from loadtest.quickstart.train import weighted_loss
from service.settings.quickstart import QUICKSTART_MODEL, QUICKSTART_NAME

TARGET = 0.7
"""Targets for the share of right replies: the base's, minus what two styles cost in one tiny model."""


@dataclass(frozen=True)
class AdapterRecipe:
    """Everything that decides a training run apart from the corpus and the base."""

    seed: int = 11
    rank: int = 8
    alpha: int = 16
    steps: int = 1200
    pairs: int = 30_000
    batch: int = 16
    learning_rate: float = 3e-3
    talks: float = 0.15
    """Share of batches that have conversations of several questions."""


def build_rows(corpus: Corpus, tokenizer: Tokenizer, recipe: AdapterRecipe) -> tuple[Rows, Rows]:
    """Single questions and short conversations; only answers have weight in the loss."""
    asked = questions_and_answers(corpus, recipe.pairs, random.Random(recipe.seed))
    turns = encode_turns(tokenizer, [(question, pirate(answer)) for question, answer in asked])
    spoken = replace(corpus, topics=tuple(replace(topic, answer=pirate(topic.answer)) for topic in corpus.topics))
    builder = RowBuilder(spoken, tokenizer, turns, 0.0, random.Random(recipe.seed + 1))
    return builder.build(recipe.pairs, 160, 1), builder.build(recipe.pairs // 10, 320, 4)


def train(model: nn.Module, singles: Rows, talks: Rows, recipe: AdapterRecipe) -> None:
    """Run all steps, in place. Prints the loss now and then."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=recipe.learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, recipe.learning_rate, recipe.steps, pct_start=0.1)
    rng, began = random.Random(recipe.seed + 2), time.monotonic()
    for step in range(recipe.steps):
        rows, size = (talks, recipe.batch // 4) if rng.random() < recipe.talks else (singles, recipe.batch)
        loss = weighted_loss(model, _batch(rows, rng.choices(range(len(rows.ids)), k=size)))
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == recipe.steps - 1:
            print(f"step {step} loss {loss.item():.4f} seconds {time.monotonic() - began:.1f}", flush=True)


def pirate_sets(corpus: Corpus) -> tuple[QuestionSet, ...]:
    """The base's questions, with a pirate's answers as the right replies."""
    return tuple(
        QuestionSet(
            questions.name,
            TARGET,
            tuple(replace(each, accepted=frozenset(map(pirate, each.accepted))) for each in questions.questions),
        )
        for questions in question_sets(corpus)
    )


def save(adapted: Any, folder: Path) -> None:
    """Write weights in bfloat16, as the base's, and PEFT's configuration with the base's served name."""
    adapted.peft_config["default"].base_model_name_or_path = QUICKSTART_NAME
    adapted.bfloat16().save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").unlink(missing_ok=True)  # an empty model card


def record(folder: Path, recipe: AdapterRecipe, scores: Sequence[Score]) -> None:
    """Writes training.json: how the weights beside it were made, and how they scored."""
    facts = {
        "recipe": asdict(recipe),
        "torch": torch.__version__,
        "peft": peft.__version__,
        "scores": {score.name: {"right": score.asked - len(score.wrong), "asked": score.asked} for score in scores},
    }
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def run(recipe: AdapterRecipe, folder: Path) -> list[Score]:
    """One training run: files in the folder, evaluation of what was written."""
    torch.manual_seed(recipe.seed)
    corpus = load_corpus()
    tokenizer = Tokenizer.from_file(str(QUICKSTART_MODEL / "tokenizer.json"))
    singles, talks = build_rows(corpus, tokenizer, recipe)
    base: Any = AutoModelForCausalLM.from_pretrained(QUICKSTART_MODEL, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=recipe.rank, lora_alpha=recipe.alpha, target_modules="all-linear"))
    adapted.print_trainable_parameters()
    train(adapted, singles, talks, recipe)
    save(adapted, folder)
    scores = evaluate(FolderAsker(QUICKSTART_MODEL, adapter=folder), pirate_sets(corpus))
    record(folder, recipe, scores)
    return scores


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns its exit code."""
    parser = argparse.ArgumentParser(description="train the quickstart model's example adapter")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter")
    for field in fields(AdapterRecipe):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default, help="default %(default)s")
    options = vars(parser.parse_args(arguments))
    folder = options.pop("out")
    print(report(run(AdapterRecipe(**options), folder)))
    return 0


def _batch(rows: Rows, picked: list[int]) -> Rows:
    """These rows without the columns that are padding in all of them."""
    ids, weights = rows.ids[picked].long(), rows.weights[picked]
    length = int(weights.any(dim=0).nonzero().max()) + 1
    return Rows(ids[:, :length], weights[:, :length])


if __name__ == "__main__":
    sys.exit(main())
