"""A model learns facts about this project while it serves: `python -m loadtest.facts MODEL_FOLDER`.

Starts `headrace serve --enable-finetuning`; asks the held-back wording of each fact; trains with a job over HTTP, while
a visitor asks a question every five seconds; asks again. Forgetting is measured by the model's earlier answers to
everyday questions that are not in the training data: their perplexity, and how many are still the same. Prints a table
and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from openai import OpenAI

from loadtest.facts.asking import Asker, Visitor, word_overlap
from loadtest.facts.data_set import NUM_FACTS, NUM_WORDINGS, chosen_facts, everyday_questions, lines
from loadtest.headrace_server import headrace_server
from loadtest.quickstart.corpus import Topic, load_corpus
from loadtest.table import aligned

_MAX_TOKENS = 100
_POLL_S = 2.0
_NEARLY = 0.8
Figures = dict[str, float]


def measure(base_url: str, options: argparse.Namespace) -> Figures:
    corpus, everyday = load_corpus(), everyday_questions()
    facts = chosen_facts(corpus, options.facts)
    client = OpenAI(base_url=f"{base_url}/v1", api_key="none", timeout=600)
    model = next(iter(client.models.list())).id
    base = Asker(client, model, _MAX_TOKENS)
    own = base.answers(everyday.measured)
    rehearsed = everyday.rehearsed[: options.rehearsed]
    figures = _right("before", base, facts) | {"before: perplexity": base.perplexity(everyday.measured, own)}
    alone_s = _seconds_of(base, everyday.rehearsed[0])

    own_rehearsed = dict(zip(rehearsed, base.answers(rehearsed), strict=True))
    visitor = Visitor(base, everyday.rehearsed[0])
    began_s = time.monotonic()
    with visitor.visiting():
        job = _trained(client, model, lines(facts, corpus, own_rehearsed, options.wordings), options)
    figures |= {
        "training: s": time.monotonic() - began_s,
        "training: tokens": job.trained_tokens or 0,
        "visitor: answers": len(visitor.seconds),
        "visitor alone: s": alone_s,
        "visitor: median s": statistics.median(visitor.seconds) if visitor.seconds else 0.0,
    }
    taught = Asker(client, job.fine_tuned_model, _MAX_TOKENS)
    figures |= _right("after", taught, facts)
    figures["after: perplexity"] = taught.perplexity(everyday.measured, own)
    again = taught.answers(everyday.measured)
    return figures | {
        "own answers: same": sum(one == other for one, other in zip(own, again, strict=True)),
        "own answers: overlap": statistics.fmean(map(word_overlap, again, own)),
    }


def _right(when: str, asker: Asker, facts: Sequence[Topic]) -> Figures:
    """Score the answers to the held-back wordings, one per fact."""
    said = asker.answers([fact.held_back[0] for fact in facts])
    overlaps = [word_overlap(answer, fact.answer) for answer, fact in zip(said, facts, strict=True)]
    exact = sum(answer.split() == fact.answer.split() for answer, fact in zip(said, facts, strict=True))
    for fact, answer, overlap in zip(facts, said, overlaps, strict=True):
        print(f"{when} {overlap:.2f} {fact.held_back[0]} -> {' '.join(answer.split())}", file=sys.stderr)
    return {
        f"{when}: exact": exact,
        f"{when}: nearly": sum(overlap >= _NEARLY for overlap in overlaps),
        f"{when}: overlap": statistics.fmean(overlaps),
    }


def _seconds_of(asker: Asker, question: str) -> float:
    began_s = time.monotonic()
    asker.answer(question)
    return time.monotonic() - began_s


def _trained(client: OpenAI, model: str, training: Sequence[str], options: argparse.Namespace) -> Any:
    """Train. Returns the job when it has succeeded."""
    file = client.files.create(file=("facts.jsonl", "\n".join(training).encode()), purpose="fine-tune")
    supervised: Any = {"hyperparameters": {"n_epochs": options.epochs, "batch_size": options.batch_size}}
    job = client.fine_tuning.jobs.create(
        model=model, training_file=file.id, method={"type": "supervised", "supervised": supervised}, suffix="facts"
    )
    told = 0.0
    while job.status not in ("succeeded", "failed", "cancelled"):
        time.sleep(_POLL_S)
        job = client.fine_tuning.jobs.retrieve(job.id)
        if time.monotonic() - told > 30:
            told = time.monotonic()
            newest = next(iter(client.fine_tuning.jobs.list_events(job.id, limit=1)), None)
            print(newest.message if newest is not None else job.status, file=sys.stderr)
    if job.status != "succeeded":
        raise SystemExit(f"the job has {job.status}: {job.error}")
    return job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a chat model")
    parser.add_argument("--facts", type=int, default=NUM_FACTS)
    parser.add_argument("--wordings", type=int, default=NUM_WORDINGS, help="wordings of each fact in the training data")
    parser.add_argument("--rehearsed", type=int, default=24, help="the model's own answers in the training data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Path(folder, "server.log").open("wb") as log:
        flags = (options.model, "--enable-finetuning", "--data-dir", folder, "--max-model-len", "2048")
        with headrace_server(flags, log) as server:
            figures = measure(f"http://127.0.0.1:{server.port}", options)
    print(aligned([[name, f"{figure:.4g}"] for name, figure in figures.items()]))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
