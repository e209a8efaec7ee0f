from __future__ import annotations

import pytest

from service.core.iteration import IterationPlan
from service.runner.giving_up import GivenUpError
from tests.models.checkpoints import gpt2, llama, opt, random_prompts
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy


@pytest.mark.parametrize("save", [llama, gpt2, opt])
def test_no_layer_begins_once_somebody_has_come(save, tmp_path, monkeypatch):
    """In every family and before every layer; what is computed after that is as before."""
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: True)  # a CPU has no stream to wait for
    loaded = load(save(tmp_path), enforce_eager=True)
    runner, begun = loaded.runner, list[int]()
    want = PlanPlayer(runner, loaded.num_blocks, 16).generate(random_prompts(3), greedy(2))
    for number, block in enumerate(runner.replays._model.blocks):

        def noting(x, number=number, mlp=block.mlp):
            begun.append(number)
            return mlp(x)

        monkeypatch.setitem(vars(block), "mlp", noting)
    for num_layers in range(len(runner.replays._model.blocks)):
        begun.clear()
        somebody_has_come = [False] * num_layers + [True]
        with pytest.raises(GivenUpError), runner._forward_pass.given_up_when(iter(somebody_has_come).__next__):
            PlanPlayer(runner, loaded.num_blocks, 16).generate([[1, 2, 3]], greedy(1))
        assert begun == list(range(num_layers))
        runner.launch(IterationPlan((), released=(0,))).wait()
    assert PlanPlayer(runner, loaded.num_blocks, 16).generate(random_prompts(3), greedy(2)) == want
