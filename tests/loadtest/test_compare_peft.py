from __future__ import annotations

import json
import math
import warnings

import pytest
import torch

from loadtest.compare_peft import Case, main


def test_both_sides_of_both_cases_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("peft")
    with warnings.catch_warnings():  # PEFT asks transformers for an attribute by its former name
        warnings.simplefilter("ignore")
        main(["--tiny"])
    out, err = capsys.readouterr()
    results = json.loads(out)
    assert [result["case"] for result in results] == ["2 x 64, rank 4, all linears", "1 x 16, rank 8, q_proj, v_proj"]
    for result in results:
        for side in ("headrace", "peft"):
            figures = result[side]
            assert figures["tokens_per_s"] > 0
            assert figures["peak_gib"] > 0
            assert figures["loss"] == pytest.approx(math.log(300), rel=0.2), "of random ids, by a random model"
        assert result["ratio"] == result["headrace"]["tokens_per_s"] / result["peft"]["tokens_per_s"]
        assert {f"{kind}_ms" for kind in ("forward", "loss", "backward", "end")} <= result["headrace"].keys()
        assert result["case"] in err


def test_a_step_has_its_own_sequences() -> None:
    ids = Case(3, 8, 1, (), num_steps=4).token_ids(50)
    assert ids.shape == (18, 8)
    assert ids.max() < 50


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it would run")
def test_without_a_gpu_it_says_what_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([])
    assert "--tiny runs on a CPU" in capsys.readouterr().err
