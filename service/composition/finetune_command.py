"""`headrace finetune`: train a LoRA adapter without a server, with the trainer of the server's jobs."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from service.core.training import StepReport, Training, TrainingNews
from service.errors import ConfigError, HeadraceError
from service.finetune.hyperparameters import MAX_BATCH_SIZE, MAX_EPOCHS
from service.finetune.job import Job, JobSpec
from service.finetune.job_faults import JobFault
from service.finetune.training_run import StateOfStep
from service.settings.quickstart import QUICKSTART_MODEL, QUICKSTART_NAME

if TYPE_CHECKING:
    from service.finetune.lora_job_work import LoraJobWork
    from service.finetune.served_base import ServedBase

CHECKPOINT = "training_state"
"""In the adapter's folder, until the training is done."""

_MAX_RANK = 256
_BAR_WIDTH = 30
_TELL_EVERY_S = 0.2
_INTERRUPTED = 130


def main(arguments: Sequence[str]) -> int:
    """Train to the end; returns the exit status. After an interruption the same command resumes."""
    options = _parser().parse_args(arguments)
    try:
        return _train(options, Progress(sys.stderr))
    except (HeadraceError, JobFault) as fault:
        print(f"headrace finetune: {fault}", file=sys.stderr)
    except OSError as fault:
        print(f"headrace finetune: {fault.filename}: {fault.strerror}", file=sys.stderr)
    return 1


class Progress:
    """On a terminal, one line that is overwritten; elsewhere, a line after each tenth."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._is_terminal = output.isatty()
        self._began_s = time.monotonic()
        self._told_s = 0.0
        self._first = self._tenths = 0

    def begin(self, step: int) -> None:
        """step: the steps that were done before. They count for the progress, not for the estimated time."""
        self._began_s, self._first = time.monotonic(), step

    def tell(self, report: StepReport, num_steps: int) -> None:
        now_s, is_last = time.monotonic(), report.step == num_steps
        tenths = 10 * report.step // num_steps
        is_due = now_s - self._told_s >= _TELL_EVERY_S if self._is_terminal else tenths > self._tenths
        if is_due or is_last:
            self._told_s, self._tenths = now_s, tenths
            end = "\n" if is_last or not self._is_terminal else ""
            start = "\r" if self._is_terminal else ""
            self._output.write(start + self._line(report, num_steps, now_s) + end)
            self._output.flush()

    def _line(self, report: StepReport, num_steps: int, now_s: float) -> str:
        done = _BAR_WIDTH * report.step // num_steps
        left_s = (now_s - self._began_s) * (num_steps - report.step) / max(report.step - self._first, 1)
        valid = "" if report.valid_loss is None else f", validation {report.valid_loss:.4f}"
        bar = f"[{'#' * done}{'.' * (_BAR_WIDTH - done)}]"
        return f"step {report.step}/{num_steps} {bar} loss {report.loss:.4f}{valid}, {left_s:.0f} s left  "


def _train(options: argparse.Namespace, progress: Progress) -> int:
    work, base_weights = _loaded(options)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    job = Job("offline", "", int(time.time()), base_weights, _spec(options))
    files = (options.data, options.validation)
    job = job.validated(work.validate(job, *files, _go_on))
    assert job.data is not None
    settings = ", ".join(f"{name} {value}" for name, value in asdict(job.data.hyperparameters).items())
    print(f"{job.data.num_examples} examples, {job.data.num_tokens} tokens; {settings}", file=sys.stderr)
    checkpoint = out / CHECKPOINT
    training = work.prepare(job, *files, checkpoint, _go_on)
    progress.begin(_state(training).step)
    try:
        while not training.is_over:
            training.advance(training.layer_steps_left)
            _note(work, job, training.take_news(), checkpoint, progress)
    except KeyboardInterrupt:
        work.save(job, _state(training), checkpoint)
        print(f"\nstopped after step {_state(training).step}; the same command goes on there", file=sys.stderr)
        return _INTERRUPTED
    work.export(job, _state(training), out)
    checkpoint.unlink(missing_ok=True)
    print(f"the adapter is in {out}: headrace serve --lora-modules NAME={out}", file=sys.stderr)
    return 0


def _note(work: LoraJobWork, job: Job, news: TrainingNews, checkpoint: Path, progress: Progress) -> None:
    assert job.data is not None
    for report in news.reports:
        progress.tell(report, job.data.num_steps)
    if news.state is not None:
        assert isinstance(news.state, StateOfStep)
        work.save(job, news.state, checkpoint)


def _state(training: Training) -> StateOfStep:
    state = training.state()
    assert isinstance(state, StateOfStep)
    return state


def _go_on() -> None:
    """Reading is never cancelled, except with the process."""


def _spec(options: argparse.Namespace) -> JobSpec:
    return JobSpec(
        model=options.model,
        training_file=str(options.data),
        seed=options.seed,
        num_epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate_multiplier=options.learning_rate_multiplier,
        learning_rate=options.learning_rate,
        rank=options.rank,
        alpha=options.alpha,
        targets=None if options.target_modules is None else tuple(sorted(options.target_modules.split(","))),
        max_length=options.max_length,
    )


def _loaded(options: argparse.Namespace) -> tuple[LoraJobWork, str]:
    """The model, ready to be trained, and the digest of its weights."""
    # Imported here: torch takes seconds, which `--help` must not wait for.
    from service.composition.finetuning import USUAL_TOKENS_ON_CPU, USUAL_TOKENS_ON_GPU
    from service.finetune.lora_job_work import LoraJobWork
    from service.finetune.served_base import ServedBase
    from service.finetune.trainable_model import check_trainable
    from service.finetune.training_text import ModelText
    from service.models.generation_config import load_generation_config
    from service.models.model_config import load_model_config
    from service.models.model_folder import resolve_model_folder
    from service.models.quantization import check_trains
    from service.models.registry import build_model
    from service.models.weight_loader import load_weights
    from service.models.weights_revision import weights_revision
    from service.runner.choices.number_format import choose_dtype
    from service.runner.device import choose_device, use_cores
    from service.text.chat_template import load_chat_template
    from service.text.tokenizer import Tokenizer

    name = str(QUICKSTART_MODEL) if options.model == QUICKSTART_NAME else options.model
    folder = resolve_model_folder(name, options.revision)
    config, device = load_model_config(folder), choose_device(options.device)
    check_trains(config.quantization)
    use_cores(device)
    model = build_model(config)
    check_trainable(model)
    model.materialize(choose_dtype(options.dtype, device, config.checkpoint_dtype), device)
    load_weights(model, folder)
    model.build_positions(config.max_position_embeddings, device)
    model.settle()
    names = (each for block in model.block_linears() for linear in block for each in linear.names)
    usual = USUAL_TOKENS_ON_CPU if device.type == "cpu" else USUAL_TOKENS_ON_GPU
    most = config.max_position_embeddings
    weights = weights_revision(folder)
    base = ServedBase(
        names=(options.model,),
        weights=weights,
        hidden_size=config.hidden_size,
        linears=frozenset(each.rpartition(".")[2] for each in names),
        max_rank=_MAX_RANK,
        max_length=most,
        usual_length=min(usual, most),
    )
    _check(options, base)
    ends = load_generation_config(folder, config).eos_token_ids
    text = ModelText(
        Tokenizer.from_folder(folder), load_chat_template(folder), min(ends, default=None), config.vocab_size
    )
    return LoraJobWork(model, text, base, lambda _: None), weights


def _check(options: argparse.Namespace, base: ServedBase) -> None:
    if options.max_length is not None and options.max_length > base.max_length:
        raise ConfigError(f"--max-length must be at most {base.max_length}, the model's context length")
    unknown = sorted(set((options.target_modules or "").split(",")) - base.linears - {""})
    if unknown:
        there_are = ", ".join(sorted(base.linears))
        raise ConfigError(f"--target-modules: the model has no linear layer {unknown[0]!r}; it has {there_are}")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return int(text)

    return parse


def _above_0(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace finetune",
        description="Train a LoRA adapter on a file of chats, or of prompts with completions, in OpenAI's format.",
        epilog="Defaults are those of fine-tuning jobs (docs/finetuning.md). After an interruption, run it again.",
    )
    parser.add_argument("data", type=Path, metavar="DATA.jsonl", help="training examples")
    parser.add_argument("--model", default=QUICKSTART_NAME, help="local folder or Hugging Face id (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the adapter, in PEFT's format")
    parser.add_argument("--validation", type=Path, help="validation examples, evaluated after each epoch")
    parser.add_argument("--epochs", type=_whole(1, MAX_EPOCHS))
    parser.add_argument("--batch-size", type=_whole(1, MAX_BATCH_SIZE), help="examples per optimizer step")
    rate = parser.add_mutually_exclusive_group()
    rate.add_argument("--learning-rate", type=_above_0)
    rate.add_argument("--learning-rate-multiplier", type=_above_0, help="factor of the default learning rate")
    parser.add_argument("--rank", type=_whole(1, _MAX_RANK))
    parser.add_argument("--alpha", type=_above_0, help="LoRA scaling is alpha / rank; default: twice the rank")
    parser.add_argument("--target-modules", help="linear layers, comma-separated: q_proj,v_proj; default: all")
    parser.add_argument(
        "--max-length", type=_whole(2, 2**20), help="maximum tokens of an example; longer ones are truncated"
    )
    parser.add_argument("--seed", type=_whole(0, 2**63 - 1), default=0)
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    return parser
