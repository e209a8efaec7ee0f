"""`--choices FILE`: the choices of an earlier start, used again without any timing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from service.errors import ConfigError
from service.layers.pipeline_stage import PipelineStage, is_last
from service.runner.choices.made_for import MadeFor
from service.runner.choices.step_choices import StepChoices
from service.runner.graph_sizes import GraphSize

_TO_CHOOSE_ANEW = "to time again, delete the file or name another one"


def choices_of_stage(path: Path, stage: PipelineStage) -> Path:
    """Each pipeline stage has its own choices: the last stage's are in FILE, the first stage's in FILE.stage-0, and so
    on."""
    return path if is_last(stage) else path.with_name(f"{path.name}.stage-{stage.index}")


class ChoicesFile:
    """path: None keeps nothing. An existing file is never written: if it does not fit, it is refused.

    kept: what the file holds; None if it does not exist yet. Made before anything is loaded, so that a file that cannot
    be read now or written later ends the start at once: raises ConfigError naming the file and the place.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.kept = None if path is None else _read(path)

    def fitting(self, made_for: MadeFor, candidates: Sequence[GraphSize]) -> StepChoices | None:
        """The file's choices; None if it does not exist yet. Raises ConfigError naming the first field that does not
        fit. candidates: the file's graph sizes must be some of these, including the first."""
        if self.kept is None:
            return None
        difference = self.kept.made_for.difference(made_for)
        if difference is not None:
            raise ConfigError(f"choices: {self._path} was made for another setup: {difference}; {_TO_CHOOSE_ANEW}")
        graphs = self.kept.graphs
        if graphs != tuple(size for size in candidates if size in graphs) or graphs[:1] != tuple(candidates[:1]):
            raise ConfigError(
                f"choices: {self._path}: graphs: these sizes are not among this service's; {_TO_CHOOSE_ANEW}"
            )
        return self.kept

    def keep(self, choices: StepChoices) -> None:
        """Write the file whole or not at all. Raises ConfigError if that fails, or if the file has appeared
        meanwhile."""
        if self._path is None:
            return
        try:
            _write_new(self._path, choices.to_json())
        except FileExistsError:
            raise ConfigError(
                f"choices: {self._path} was written by another process meanwhile; start again to use it"
            ) from None
        except OSError as fault:
            raise ConfigError(f"choices: {self._path} cannot be written: {fault.strerror}") from None


def _read(path: Path) -> StepChoices | None:
    try:
        return StepChoices.from_json(path.read_bytes())
    except FileNotFoundError:
        if not os.access(path.parent, os.W_OK):
            raise ConfigError(f"choices: {path} does not exist, and its folder is not writable") from None
        return None
    except OSError as fault:
        raise ConfigError(f"choices: {path} cannot be read: {fault.strerror}") from None
    except ValueError as fault:
        raise ConfigError(f"choices: {path} is not a choices file: {fault}; {_TO_CHOOSE_ANEW}") from None


def _write_new(path: Path, text: str) -> None:
    """Raises FileExistsError, and leaves the file alone, if it exists."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.") as unfinished:
        unfinished.write(text)
        unfinished.flush()
        os.fsync(unfinished.fileno())
        os.fchmod(unfinished.fileno(), 0o644)
        os.link(unfinished.name, path)
