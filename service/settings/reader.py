"""Reads the settings, and explains errors in the user's words."""

from __future__ import annotations

import os
import re
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from pydantic import ByteSize, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsError,
)

from service.errors import ConfigError
from service.settings.config_file import did_you_mean, read_config_file
from service.settings.service_links import is_service_link
from service.settings.settings import ENV_PREFIX, SECRETS, Settings

_METAVARS = {
    "str": "TEXT",
    "int": "NUMBER",
    "float": "NUMBER",
    "ByteSize": "SIZE",
    "Path": "FILE",
    "tuple[str,...]": "A,B,...",
    "dict[str,JsonValue]": "JSON",
}


def read_settings(arguments: list[str]) -> Settings:
    """Settings from flags, environment and file.

    Raises ConfigError that names each wrong setting and the reason. `--help` prints and exits.
    """
    _check_environment()
    try:
        command_line: CliSettingsSource[ArgumentParser] = CliSettingsSource(Settings, cli_prog_name="headrace serve")
        _tidy_help(command_line.root_parser)
        named = command_line(args=[_with_hyphens(a) for a in arguments])()
        config = named.get("config") or os.environ.get(f"{ENV_PREFIX}CONFIG")
        return _with_file(Path(config))(**named) if config else Settings(**named)
    except ValidationError as fault:
        raise ConfigError(_explain(fault)) from None
    except SettingsError as fault:
        raise ConfigError(_explain_command_line(str(fault))) from None


def _with_hyphens(argument: str) -> str:
    """`--max_num_seqs=4` is `--max-num-seqs=4`."""
    flag, equals, value = argument.partition("=")
    return flag.replace("_", "-") + equals + value if flag.startswith("--") else argument


def _tidy_help(parser: ArgumentParser) -> None:
    """Shows types in a reader's words instead of Python's, and leaves out defaults that are empty."""
    parser.usage = "headrace serve [options] [MODEL]"
    for action in parser._actions:
        if isinstance(action.metavar, str):
            action.metavar = _METAVARS.get(action.metavar, action.metavar)
        action.help = re.sub(r" \(default: (null|\(\)|\{\})\)$", "", action.help or "")
        if action.metavar == "SIZE":
            action.help = re.sub(r"(?<=default: )\d+", lambda size: _readable(int(size[0])), action.help)


def _readable(size: int) -> str:
    return ByteSize(size).human_readable().replace(".0", "")


def _with_file(path: Path) -> type[Settings]:
    """Settings that take from the file what command line and environment leave out; defaults come last."""
    values = read_config_file(path, Settings.model_fields.keys() - {"config"})

    class FileSettings(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *args: Any, **kwargs: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            before = super().settings_customise_sources(settings_cls, *args, **kwargs)
            return *before, InitSettingsSource(settings_cls, values)

    return FileSettings


def _check_environment() -> None:
    known = {name.upper() for name in Settings.model_fields}
    for variable, value in os.environ.items():
        if not variable.startswith(ENV_PREFIX) or is_service_link(variable, value):
            continue
        if variable.removeprefix(ENV_PREFIX) not in known:
            raise ConfigError(f"{variable} is not a setting{did_you_mean(variable, known, ENV_PREFIX)}")


def _explain(fault: ValidationError) -> str:
    lines = []
    for error in fault.errors():
        name = "-".join(str(part) for part in error["loc"]).replace("_", "-")
        reason = error["msg"].removeprefix("Value error, ")
        is_shown = error["loc"] and error["loc"][0] not in SECRETS
        given = f" (given: {str(error['input'])[:100]!r})" if is_shown else ""
        lines.append(f"{name}: {reason}{given}" if name else reason)
    return "; ".join(lines)


def _explain_command_line(fault: str) -> str:
    message = fault.removeprefix("error parsing CLI: ")
    if not_json := re.search(r"Parsing error encountered for (\w+)", message):
        return f"{not_json[1].replace('_', '-')}: is not a JSON object"
    flag = re.search(r"unrecognized arguments: (--[\w-]+)", message)
    if flag is None:
        return f"{message} (--help lists every setting)"
    if flag[1] == "--model":
        return "--model is not a setting: the model is given without a flag, headrace serve MODEL"
    known = {name.replace("_", "-") for name in Settings.model_fields}
    return f"{flag[1]} is not a setting{did_you_mean(flag[1], known, '--')} (--help lists every setting)"
