from __future__ import annotations

import os
import stat

import pytest

from service.errors import ConfigError
from service.runner.choices.choices_file import ChoicesFile
from service.runner.graph_sizes import GraphSize
from tests.runner.choices.some_choices import SIZES, made_for, some_choices
from tests.runner.choices.test_made_for import CHANGES

CANDIDATES = [SIZES[0], GraphSize(16, 16), *SIZES[1:]]


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "choices.json"
    ChoicesFile(path).keep(some_choices())
    return path


def test_without_a_name_nothing_is_kept():
    file = ChoicesFile(None)
    assert file.fitting(made_for(), CANDIDATES) is None
    file.keep(some_choices())


def test_the_first_start_writes_it_and_the_next_reads_it(tmp_path):
    path = tmp_path / "choices.json"
    file = ChoicesFile(path)
    assert file.fitting(made_for(), CANDIDATES) is None
    assert not path.exists()
    file.keep(some_choices())
    assert [entry.name for entry in tmp_path.iterdir()] == ["choices.json"], "nothing unfinished is left"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert ChoicesFile(path).fitting(made_for(), CANDIDATES) == some_choices()


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_made_for_something_else_is_refused_by_name_and_left_alone(name, written):
    before = written.read_bytes()
    with pytest.raises(ConfigError, match=rf"choices: .*choices\.json was made for another setup: {name} is "):
        ChoicesFile(written).fitting(made_for(**{name: CHANGES[name]}), CANDIDATES)
    assert written.read_bytes() == before


@pytest.mark.parametrize(
    "candidates",
    [CANDIDATES[1:], [*reversed(CANDIDATES)], [], [GraphSize(128, 8), *CANDIDATES]],
    ids=["fewer", "another order", "none", "a larger one"],
)
def test_graphs_that_are_none_of_the_services_are_refused(candidates, written):
    with pytest.raises(ConfigError, match=r"choices\.json: graphs: "):
        ChoicesFile(written).fitting(made_for(), candidates)


def test_a_damaged_file_is_refused_naming_file_and_place(written):
    written.write_text(written.read_text()[:-10])
    with pytest.raises(ConfigError, match=r"choices\.json is not a choices file: Invalid JSON: .* at line \d+ column"):
        ChoicesFile(written)


def test_a_file_that_cannot_be_read_ends_the_start(tmp_path):
    with pytest.raises(ConfigError, match=r"choices: .* cannot be read: Is a directory"):
        ChoicesFile(tmp_path)


def test_a_folder_that_is_not_there_ends_the_start_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist, and its folder is not writable"):
        ChoicesFile(tmp_path / "nowhere" / "choices.json")


def test_what_another_process_wrote_meanwhile_is_not_overwritten(tmp_path):
    path = tmp_path / "choices.json"
    first, second = ChoicesFile(path), ChoicesFile(path)
    first.keep(some_choices())
    with pytest.raises(ConfigError, match="was written by another process meanwhile; start again to use it"):
        second.keep(some_choices(max_num_seqs=9))
    assert ChoicesFile(path).kept == some_choices()


def test_a_disk_that_is_full_leaves_no_half_file(tmp_path, monkeypatch):
    path = tmp_path / "choices.json"

    def full(descriptor):
        raise OSError(28, "No space left on device")

    file = ChoicesFile(path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"choices\.json cannot be written: No space left on device"):
        file.keep(some_choices())
    assert list(tmp_path.iterdir()) == []
