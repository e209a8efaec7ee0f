"""The one place where a model's steps are chosen by timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from service.layers.add_norm_fusion import AddNormFusion
from service.layers.gated_mlp import GatedMlp
from service.layers.projection import Projection, use_choices
from service.layers.tensor_parallel import TensorParallel
from service.models.causal_lm import CausalLM
from service.runner.choices.kept_sizes import kept_sizes
from service.runner.choices.kernel_rows import choose_kernels, compile_timed
from service.runner.choices.made_for import MadeFor
from service.runner.choices.step_choices import StepChoices
from service.runner.choices.sum_orders import launch_sum_orders, with_sum_orders
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
    """Make a model that has weights and positions compute by the known choices or, if there are none, by what is timed
    now. No weight can be written afterwards.

    candidates: sizes of CUDA graphs; empty without them. also_launch: on a GPU, called once by all ranks if every stage
    has to time; its launches only compile kernels beside those that are timed (kernels/compile_ahead.py), and it may
    use the model. in_two_forms: a CPU has memory for a second form of the weights. Raises ConfigError if this machine
    cannot follow the known choices. Rank 0 chooses for all ranks; the others wait for it.
    """
    parallel = model.parallel
    choices = _of_first(known, parallel)
    is_timed = choices is None
    if device.type == "cuda":
        are_all_timed = bool(model.stage.least(int(is_timed)))
        if is_timed:
            launch = partial(_launch_beside, model, also_launch if are_all_timed else lambda: None)
            compile_timed(*_parts(model), device, parallel, launch)
    if choices is None:
        timed = None
        if parallel.rank == 0 and device.type == "cuda":
            timed = _timed_on_gpu(model, made_for, device, candidates, timer)
        elif parallel.rank == 0:
            timed = _timed_on_cpu(model, made_for, timer, in_two_forms=in_two_forms)
        choices = _of_first(timed, parallel)
        assert choices is not None
    if not is_timed or parallel.rank > 0:
        use_choices(model.projections, choices.linears, device)
    model.settle()
    return choices


def _of_first(choices: StepChoices | None, parallel: TensorParallel) -> StepChoices | None:
    """Rank 0's choices, on every rank."""
    if parallel.size == 1:
        return choices
    told = parallel.of_first("" if choices is None else choices.to_json())
    return choices if parallel.rank == 0 else StepChoices.from_json(told) if told else None


def _parts(model: CausalLM) -> tuple[Sequence[Projection], Sequence[GatedMlp], Sequence[AddNormFusion]]:
    mlps = [module for module in model.modules() if isinstance(module, GatedMlp)]
    return model.projections, mlps, model.add_norm_fusions()


def _launch_beside(model: CausalLM, also_launch: Callable[[], object]) -> None:
    """Launches to be compiled beside the kernels that are timed."""
    also_launch()
    if model.is_row_invariant:
        launch_sum_orders(model.projections)


def _timed_on_gpu(
    model: CausalLM, made_for: MadeFor, device: torch.device, candidates: Sequence[GraphSize], timer: Timer
) -> StepChoices:
    projections, mlps, fusions = _parts(model)
    kernels = choose_kernels(projections, mlps, fusions, device, timer)
    if model.is_row_invariant:
        kernels = with_sum_orders(projections, kernels, made_for.max_num_batched_tokens)
        use_choices(projections, kernels, device)
    return StepChoices(made_for, kernels, kept_sizes(projections, mlps, candidates, timer))


def _timed_on_cpu(model: CausalLM, made_for: MadeFor, timer: Timer, *, in_two_forms: bool) -> StepChoices:
    if made_for.deterministic:
        return StepChoices(made_for, ordered_forms(model.projections), ())
    return StepChoices(made_for, choose_forms(model.projections, timer, in_two_forms=in_two_forms), ())
