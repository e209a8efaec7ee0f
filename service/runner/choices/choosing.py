"""The one place where a model's steps are chosen by timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from service.layers.gated_mlp import GatedMlp
from service.layers.projection import use_choices
from service.models.causal_lm import CausalLM
from service.runner.choices.kept_sizes import kept_sizes
from service.runner.choices.kernel_rows import choose_kernels
from service.runner.choices.made_for import MadeFor
from service.runner.choices.step_choices import StepChoices
from service.runner.choices.timer import Timer
from service.runner.choices.weight_forms import choose_forms, ordered_forms
from service.runner.graph_sizes import GraphSize


def choose_steps(
    model: CausalLM,
    made_for: MadeFor,
    known: StepChoices | None,
    device: torch.device,
    candidates: Sequence[GraphSize],
    timer: Timer,
    also_launch: Callable[[], object] = lambda: None,
    *,
    in_two_forms: bool = True,
) -> StepChoices:
    """Have a model with weights and positions compute by what is known or, if nothing is, by what is timed now. No
    weight can be written afterwards.

    candidates: sizes of CUDA graphs, none without them. also_launch: on a GPU, called once if there are timings; may
    use the model and is launched for nothing but to compile its kernels beside those that are timed
    (kernels/compile_ahead.py). in_two_forms: on a CPU there is memory for a second form of the weights. Raises
    ConfigError if this machine cannot do what is known. Of several ranks the first one chooses for all, and the others
    wait for it.
    """
    parallel = model.parallel
    if parallel.rank > 0:
        known = StepChoices.from_json(parallel.of_first("").encode())
    if known is not None:
        use_choices(model.projections, known.linears, device)
        choices = known
    elif device.type == "cuda":
        choices = _timed_on_gpu(model, made_for, device, candidates, timer, also_launch)
    else:
        forms = (
            ordered_forms(model.projections)
            if made_for.deterministic
            else choose_forms(model.projections, timer, in_two_forms=in_two_forms)
        )
        choices = StepChoices(made_for, forms, ())
    if parallel.rank == 0 and parallel.size > 1:
        parallel.of_first(choices.to_json())
    model.settle()
    return choices


def _timed_on_gpu(
    model: CausalLM,
    made_for: MadeFor,
    device: torch.device,
    candidates: Sequence[GraphSize],
    timer: Timer,
    also_launch: Callable[[], object],
) -> StepChoices:
    projections = model.projections
    mlps = [module for module in model.modules() if isinstance(module, GatedMlp)]
    kernels = choose_kernels(projections, mlps, model.add_norm_fusions(), device, timer, also_launch)
    return StepChoices(made_for, kernels, kept_sizes(projections, mlps, candidates, timer))
