"""The `headrace` command. Each subcommand imports what it needs when it runs, so that `--help` is quick."""

from __future__ import annotations

import sys
from typing import NoReturn

USAGE = """\
Headrace, an OpenAI-compatible LLM inference service.

usage: headrace COMMAND ...

commands:
  serve [MODEL]     start the server; without MODEL it serves the bundled quickstart model
  doctor [MODEL]    check whether this machine can serve this model, and say how to fix problems
  chat [URL]        chat with a running server, and run batches of prompts in the background
  batch FILE        answer a file of requests, on a running server or without one
  finetune DATA     train a LoRA adapter on a file of examples, without a server
  loadtest ...      send a workload to an OpenAI-compatible server and report latencies
  plan ...          find out how many replicas and GPUs a given traffic needs
  parity [MODEL]    compare a model's answers with transformers', and write a report

  headrace COMMAND --help lists a command's options. --version prints the version.
  `python -m loadtest.bench` measures a model or single kernels without HTTP.
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status. With the process's own arguments it may start anew first."""
    command, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if arguments is None and command == "serve":
        _prepare_process()
    elif arguments is None and command == "finetune":
        _prepare_libraries()
    match command:
        case "serve":
            return _serve(rest)
        case "doctor":
            return _doctor(rest)
        case "chat":
            return _chat(rest)
        case "batch":
            return _batch(rest)
        case "finetune":
            return _finetune(rest)
        case "loadtest":
            _run_beside("loadtest", rest)
        case "plan":
            _run_beside("loadtest.capacity", rest)
        case "parity":
            _run_beside("loadtest.parity", rest)
        case "-h" | "--help" | "help":
            print(USAGE, end="")
            return 0
        case "--version":
            from service.core.version import distribution_version

            print(distribution_version())
            return 0
    print(f"headrace: there is no command {command!r}\n\n{USAGE}", end="", file=sys.stderr)
    return 2


def _prepare_process() -> None:
    from service.process.early_signals import end_at_signals, hold_signals
    from service.process.environment import restart_prepared
    from service.process.standard_streams import open_standard_streams

    hold_signals()
    open_standard_streams()
    restart_prepared()
    end_at_signals()


def _prepare_libraries() -> None:
    from service.process.environment import restart_prepared

    restart_prepared()


def _serve(arguments: list[str]) -> int:
    from service.composition.early_compiling import start_compiling_early
    from service.composition.start_checks import check_model_source
    from service.errors import ConfigError
    from service.settings.reader import read_settings

    try:
        settings = read_settings(arguments)
        check_model_source(settings.model_source(), settings.parallel_config())
    except ConfigError as fault:
        print(f"headrace serve: {fault}", file=sys.stderr)
        return 2
    if settings.node_rank > 0:
        from service.composition.other_host import serve_stages

        return serve_stages(settings)
    start_compiling_early(settings)
    from service.main import serve

    return serve(settings)


def _doctor(arguments: list[str]) -> int:
    from service.doctor.command import main as doctor_main

    return doctor_main(arguments)


def _chat(arguments: list[str]) -> int:
    from service.chat_client.command import main as chat_main

    return chat_main(arguments)


def _batch(arguments: list[str]) -> int:
    from service.chat_client.batch_command import main as batch_main

    return batch_main(arguments)


def _finetune(arguments: list[str]) -> int:
    from service.composition.finetune_command import main as finetune_main

    return finetune_main(arguments)


def _run_beside(package: str, arguments: list[str]) -> NoReturn:
    """What stands beside the service runs as itself: nothing here imports it."""
    import runpy

    sys.argv[1:] = arguments
    runpy.run_module(package, run_name="__main__")
    sys.exit()
