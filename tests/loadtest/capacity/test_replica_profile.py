from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.capacity.replica_profile import PROFILES, read_profile, write_profile
from tests.loadtest.capacity.modelled_profile import modelled_profile


def test_what_is_written_is_read(tmp_path: Path):
    write_profile(tmp_path / "a.json", modelled_profile())
    assert read_profile(str(tmp_path / "a.json")) == modelled_profile()


@pytest.mark.parametrize("name", [file.stem for file in PROFILES.glob("*.json")])
def test_the_predictor_of_a_shipped_profile_tells_its_own_timings(name: str):
    profile = read_profile(name)
    predictor = profile.predictor()
    for timing in profile.timings:
        assert predictor.predicted_s(timing.workload) == pytest.approx(timing.seconds, rel=0.06)
    assert "loadtest/log/" in profile.source


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kv_tokens": 0}, "kv_tokens"),
        ({"timings": []}, "timings"),
        ({"request_s": -1}, "request_s"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], named: str):
    made = {**modelled_profile().model_dump(mode="json"), **change}
    (tmp_path / "a.json").write_text(json.dumps(made))
    with pytest.raises(ValueError, match=rf"a\.json: {named}"):
        read_profile(str(tmp_path / "a.json"))


def test_a_timing_without_end_a_file_that_is_no_json_and_none_at_all_are_refused(tmp_path: Path):
    made = modelled_profile().model_dump(mode="json")
    made["timings"][3]["seconds"] = 0
    (tmp_path / "a.json").write_text(json.dumps(made))
    with pytest.raises(ValueError, match=r"timings\.3\.seconds"):
        read_profile(str(tmp_path / "a.json"))
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(ValueError, match="JSON"):
        read_profile(str(tmp_path / "b.json"))
    with pytest.raises(ValueError, match="llama-8b-h200 come"):
        read_profile("c.json")
    with pytest.raises(ValueError, match="directory"):
        read_profile(str(tmp_path))
