"""Compares a model's answers with transformers' `generate` on your machine, and writes a report.

    headrace parity [MODEL] [--out parity.md] [--server-args options of `headrace serve`]

Compares greedy tokens and their logprobs, each prompt alone and all at once, and beam searches. Both sides use the same
dtype and device; the server is stopped before transformers loads. The exit code is 1 if rounding does not explain a
difference. Needs transformers: pip install 'headrace[parity]'.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loadtest.headrace_server import headrace_server
from loadtest.parity.comparison import ROUNDING, Answer, Difference, Searches, compare, num_equal
from loadtest.parity.headrace_side import HeadraceSide, Prompt
from loadtest.parity.page import Findings, page
from loadtest.parity.prompts import default_prompts
from loadtest.server_process import ServerDidNotStartError
from service.errors import ConfigError, ModelLoadError

if TYPE_CHECKING:
    from loadtest.parity.transformers_side import TransformersSide

_TOKENS = 24
_BEAM_WIDTH = 4
_SEARCHES = 4


class Served(NamedTuple):
    """Answers from `headrace serve`."""

    prompts: tuple[Prompt, ...]
    alone: list[Answer]
    at_once: list[Answer]
    beams: list[list[tuple[int, ...]]]
    device: str
    dtype: str


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0, 1 if rounding does not explain a difference, 2 if no comparison was possible."""
    args = _parser().parse_args(arguments)
    if find_spec("transformers") is None:
        print("headrace parity: needs transformers: pip install 'headrace[parity]'", file=sys.stderr)
        return 2
    try:
        findings, text = _compared(args)
    except (OSError, ValueError, RuntimeError, ServerDidNotStartError, ConfigError, ModelLoadError) as fault:
        print(f"headrace parity: {fault}", file=sys.stderr)
        return 2
    args.out.write_text(text, encoding="utf-8")
    print(text)
    return 0 if findings.all_explained else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace parity", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="folder or Hugging Face id; default: the quickstart model")
    parser.add_argument("--prompts", type=Path, help="text file with one prompt per line; default: 32 bundled prompts")
    parser.add_argument("--max-tokens", type=int, default=_TOKENS, help=f"tokens per answer; default: {_TOKENS}")
    parser.add_argument("--dtype", default="auto", help="default: the server's choice for the model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--beam-width", type=int, default=_BEAM_WIDTH, help="0: no beam search; default: %(default)s")
    parser.add_argument("--out", type=Path, default=Path("parity.md"), help="default: parity.md")
    parser.add_argument(
        "--server-args", nargs=argparse.REMAINDER, default=[], help="options of `headrace serve`; must come last"
    )
    return parser


def _compared(args: argparse.Namespace) -> tuple[Findings, str]:
    from service.models.model_folder import resolve_model_folder
    from service.settings.quickstart import QUICKSTART_MODEL
    from service.text.tokenizer import Tokenizer

    folder = resolve_model_folder(args.model, None) if args.model else Path(QUICKSTART_MODEL)
    lines = args.prompts.read_text(encoding="utf-8").splitlines() if args.prompts else default_prompts()
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise ValueError(f"--prompts: {args.prompts} has no prompt")
    served = _ask(folder, args, texts)
    findings = _judge(folder, args, served)
    tokenizer = Tokenizer.from_folder(folder)

    def before(difference: Difference) -> str:
        answer = served.alone[difference.prompt].token_ids
        return tokenizer.decode([*served.prompts[difference.prompt], *answer[: difference.place]])

    return findings, page(findings, before, lambda token: tokenizer.decode([token]))


def _ask(folder: Path, args: argparse.Namespace, texts: Sequence[str]) -> Served:
    from service.runner.choices.step_choices import StepChoices

    with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "log").open("wb+") as log:
        choices = Path(scratch) / "choices.json"
        flags = ["--dtype", args.dtype, "--device", args.device, "--choices", str(choices)]
        with headrace_server([str(folder), *flags, *args.server_args], log) as server:
            side = HeadraceSide(f"http://127.0.0.1:{server.port}", args.max_tokens)
            prompts = tuple(map(side.tokenize, texts))
            print(f"asking Headrace: {len(prompts)} prompts alone and at once", file=sys.stderr, flush=True)
            alone, at_once = side.alone(prompts), side.at_once(prompts)
            beams = side.beams(prompts[:_SEARCHES], args.beam_width) if args.beam_width else []
        made_for = StepChoices.from_json(choices.read_text(encoding="utf-8")).made_for
    return Served(prompts, alone, at_once, beams, made_for.device, made_for.dtype)


def _judge(folder: Path, args: argparse.Namespace, served: Served) -> Findings:
    import torch

    from loadtest.parity.transformers_side import TransformersSide

    print("asking transformers", file=sys.stderr, flush=True)
    device = "cpu" if args.device == "cpu" or not torch.cuda.is_available() else "cuda"
    theirs = TransformersSide(folder, getattr(torch, served.dtype), device, args.max_tokens)
    of_alone, of_at_once = theirs.judged(served.prompts, (served.alone, served.at_once))
    rounding = ROUNDING[served.dtype]
    return Findings(
        model=args.model or "The quickstart model",
        machine=f"{served.dtype} on {served.device}",
        num_tokens=args.max_tokens,
        comparisons={
            "alone": compare(served.alone, of_alone, rounding),
            "all at once": compare(served.at_once, of_at_once, rounding),
        },
        num_own_equal=num_equal(_tokens(served.alone), _tokens(served.at_once)),
        num_theirs_equal=num_equal([each.theirs.token_ids for each in of_alone], theirs.at_once(served.prompts)),
        num_prompts=len(served.prompts),
        most_by_rounding=rounding.most,
        searches=_searches(theirs, served, args.beam_width),
    )


def _searches(theirs: TransformersSide, served: Served, width: int) -> Searches:
    equal, ahead = [], {}
    for number, (prompt, ours) in enumerate(zip(served.prompts, served.beams, strict=False)):
        expected = theirs.beams(prompt, width)
        equal.append(num_equal(ours, expected))
        if equal[-1] < width:
            best, other = (theirs.total_logprob(prompt, beams[0]) for beams in (expected, ours))
            ahead[number] = best - other
    return Searches(width, tuple(equal), ahead)


def _tokens(answers: Sequence[Answer]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]
