"""Draws the papers' figures: `python -m loadtest.scenarios [NAME ...] [--form small|full] [--out FOLDER]`.

Without names, all of them. Each figure is printed and written as soon as it is ready; the folder's index.html shows all
of them. With `--limit-s`, a scenario that takes longer is aborted.
"""

import argparse
import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from loadtest.scenarios import (
    adaptivellm_fig7,
    adaptivellm_fig8,
    adaptivellm_fig9,
    adaptivellm_regressors,
    adaptivellm_table3,
    adaptivellm_table5,
    fineinfer_coserving,
    fineinfer_deferral,
    fineinfer_fig5,
    fineinfer_overhead,
    orca_fig9,
    orca_fig10,
    orca_fig11,
    orca_pipeline,
    overhead_table,
    pagedattention_fig2,
    pagedattention_fig12,
    pagedattention_fig15,
    pagedattention_fig16,
    pagedattention_fig17,
    pagedattention_fig18,
    pagedattention_fig19,
    tokenattention,
)
from loadtest.scenarios.figure import Figure, figure_text, write_figure, write_page
from loadtest.scenarios.stage import FULL, SMALL, Stage

SCENARIOS: Mapping[str, Callable[[Stage], Figure]] = MappingProxyType(
    {
        scenario.NAME: scenario.run
        for scenario in (
            orca_fig9,
            orca_fig10,
            orca_fig11,
            orca_pipeline,
            pagedattention_fig2,
            pagedattention_fig12,
            pagedattention_fig15,
            pagedattention_fig16,
            pagedattention_fig17,
            pagedattention_fig18,
            pagedattention_fig19,
            tokenattention,
            fineinfer_fig5,
            fineinfer_overhead,
            fineinfer_deferral,
            fineinfer_coserving,
            adaptivellm_table3,
            adaptivellm_table5,
            adaptivellm_regressors,
            adaptivellm_fig7,
            adaptivellm_fig8,
            adaptivellm_fig9,
            overhead_table,
        )
    }
)


def draw(names: list[str], stage: Stage, folder: Path, limit_s: float = 0.0) -> list[str]:
    """Run the scenarios. Returns the names of those that failed or took longer than `limit_s` seconds (0: no limit).

    A failure does not stop the others.
    """
    figures: list[Figure] = []
    failed = []
    for name in names:
        began = time.monotonic()
        try:
            with _time_limit(limit_s):
                figure = SCENARIOS[name](stage)
        except Exception:
            traceback.print_exc()
            print(f"{name} failed ({time.monotonic() - began:.0f} s)\n", flush=True)
            failed.append(name)
            continue
        figures.append(figure)
        write_figure(figure, folder)
        print(f"{figure_text(figure)}\n({time.monotonic() - began:.0f} s)\n", flush=True)
        write_page(figures, stage.describe(), folder / "index.html")
    return failed


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread, as soon as that thread runs Python code."""

    def give_up(signal_number: int, frame: object) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _title(run: Callable[[Stage], Figure]) -> str:
    """The first line of the scenario's module docstring."""
    return (sys.modules[run.__module__].__doc__ or "").splitlines()[0]


def main() -> int:
    """The exit code is 1 if a scenario failed."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.scenarios",
        description=__doc__,
        epilog="\n".join(["scenarios:", *(f"  {name:20} {_title(run)}" for name, run in SCENARIOS.items())]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios, see below; default: all")
    parser.add_argument("--form", choices=("small", "full"), default="small", help="small (default): CPU; full: GPU")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder to write to; default: figures")
    parser.add_argument("--limit-s", type=float, default=0.0, help="limit per scenario in seconds; default 0: none")
    parser.add_argument(
        "--trials-s", type=float, default=0.0, help="seconds for fineinfer_overhead's trials; default: 60, full: 30"
    )
    args = parser.parse_args()
    unknown = [name for name in args.names if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    stage = Stage(SMALL if args.form == "small" else FULL, args.trials_s)
    print(f"{stage.describe()}\n", flush=True)
    failed = draw(args.names or list(SCENARIOS), stage, args.out, args.limit_s)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
