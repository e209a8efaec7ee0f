from __future__ import annotations

import pytest
import torch

from service.config import CacheConfig
from service.layers.packed_weight import WeightForm, can_pack
from service.models.llama import Llama
from service.models.model_config import load_model_config
from service.models.registry import build_model
from service.runner.choices.choosing import choose_steps
from service.runner.choices.made_for import MadeFor
from service.runner.choices.step_choices import StepChoices
from service.runner.load import load_executor
from tests.models.checkpoints import gpt2, llama, opt, random_prompts
from tests.runner.choices.test_weight_forms import has_loops
from tests.runner.loading import load, source
from tests.runner.plan_player import PlanPlayer, greedy
from tests.runner.test_cuda_graphs import random_params

CPU = torch.device("cpu")


def never(launches):
    pytest.fail("timed")


def counted(seconds=lambda launches: 1.0):
    calls = []

    def timer(launches):
        calls.append(len(launches))
        return seconds(launches)

    return timer, calls


def ready(folder, known, dtype=torch.bfloat16, timer=never):
    config = load_model_config(folder)
    model = build_model(config)
    made_for = MadeFor.of(model, config.architecture, CPU, dtype, 4, 64, enforce_eager=False)
    model.materialize(dtype, CPU)
    torch.manual_seed(0)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.1)
    model.build_positions(64, CPU)
    return model, choose_steps(model, made_for, known, CPU, (), timer)


@pytest.mark.parametrize("save", [llama, opt, gpt2])
def test_every_projection_computes_as_the_value_says(save, tmp_path):
    folder = save(tmp_path)
    timer, _ = counted()
    model, choices = ready(folder, None, timer=timer)
    assert [each.method.choice for each in model.projections] == [
        choices.linears[each.shape_name] for each in model.projections
    ]
    other, same = ready(folder, StepChoices.from_json(choices.to_json()))
    assert same == choices
    assert [each.method.choice for each in other.projections] == [each.method.choice for each in model.projections]


@pytest.mark.parametrize("form", [WeightForm.PLAIN, WeightForm.ONEDNN, WeightForm.LOOPS, WeightForm.BOTH])
def test_the_value_decides_and_not_the_machine(form, tmp_path):
    """Whatever would be faster here: each form is used where it is asked for, and other shapes have another."""
    if not can_pack(torch.bfloat16) or not has_loops():
        pytest.skip("this machine has not all forms")
    folder = llama(tmp_path, vocab_size=304)
    model, timed = ready(folder, None, timer=counted()[0])
    first = model.projections[0].shape_name
    linears = {shape: form if shape == first else WeightForm.ONEDNN for shape in timed.linears}
    given = StepChoices(timed.made_for, linears, ())
    models = [ready(folder, StepChoices.from_json(given.to_json()))[0] for _ in range(2)]
    for each in models:
        assert {p.shape_name: p.method.choice for p in each.projections} == linears
    x = torch.randn(3, 64).bfloat16()
    with torch.inference_mode():
        one, other = (each.projections[0](x) for each in models)
    assert torch.equal(one, other)


PROMPTS = [[5, 9, 2, 7, 11], [3] * 20, list(range(40, 90))]


def logits_of(loaded, monkeypatch):
    """The ids that are drawn, and the logits of every draw, in their order."""
    seen, compute = [], Llama.compute_logits
    monkeypatch.setattr(
        Llama, "compute_logits", lambda model, hidden: (seen.append(compute(model, hidden)), seen[-1])[1]
    )
    drawn = PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(PROMPTS, greedy(8), chunk=16, max_seqs=3)
    monkeypatch.undo()
    return drawn, [logits.clone() for logits in seen]


@pytest.mark.parametrize("wins", [WeightForm.LOOPS, WeightForm.ONEDNN])
def test_two_starts_with_one_file_compute_the_same_bits_and_the_second_times_nothing(wins, tmp_path, monkeypatch):
    """dtype auto, so that also that would be timed; whichever form won the first time."""
    folder, file = llama(tmp_path, vocab_size=304, head_dim=32), tmp_path / "choices.json"
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"dtype": "float32"', '"dtype": "bfloat16"'))

    def seconds(launches):
        weight = launches[0].func
        if hasattr(weight, "form"):
            return 1.0 if weight.form is wins else 9.0
        return 1.0 if launches[0].args[0].dtype is torch.bfloat16 else 2.0

    timer, calls = counted(seconds)
    first = load(folder, dtype="auto", choices_file=file, timer=timer)
    if can_pack(torch.bfloat16) and has_loops():
        assert first.dtype == "bfloat16" and len(calls) >= 4
        assert set(first.choices.linears.values()) == {wins}
    second = load(folder, dtype="auto", choices_file=file, timer=never)
    assert second.choices == first.choices == StepChoices.from_json(file.read_text())
    assert (second.dtype, second.device) == (first.dtype, first.device)
    (drew, want), (again, got) = logits_of(first, monkeypatch), logits_of(second, monkeypatch)
    assert drew == again
    assert len(got) == len(want) > 8
    assert all(map(torch.equal, got, want))


@pytest.mark.gpu
def test_on_a_gpu_a_file_brings_kernels_and_graphs_which_are_all_captured_before_the_first_request(tmp_path):
    folder, file = llama(tmp_path), tmp_path / "choices.json"
    cache = CacheConfig(block_size=16, memory_utilization=0.9, memory_bytes=64 << 20)
    how = source(folder, "bfloat16", device="cuda")
    first = load_executor(how, folder, cache, 64, 2048, choices_file=file)
    second = load_executor(how, folder, cache, 64, 2048, choices_file=file, timer=never)
    assert second.choices == first.choices == StepChoices.from_json(file.read_text())
    drawn = []
    for loaded in (first, second):
        linears = loaded.choices.linears
        assert all(each.method.choice == linears[each.shape_name] for each in loaded.runner.replays._model.projections)
        graphs = loaded.runner.replays._graphs
        assert sorted([*graphs.sizes.decodes, *graphs.sizes.mixed]) == sorted(loaded.choices.graphs)
        assert not loaded.idle_work.do_some()
        player = PlanPlayer(loaded.runner, loaded.num_blocks, 16)
        drawn.append(player.generate(random_prompts(20), random_params(20, 0), chunk=40, max_seqs=9))
    assert drawn[0] == drawn[1]
