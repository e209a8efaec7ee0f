"""A batch of the base and of several adapters: each request gets what PEFT generates with its adapter, in fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from kernels.cpu_loops import cpu_loops
from service.config import LoraConfig
from service.core.adapter import AdapterLoad
from service.core.iteration import IterationPlan
from service.runner.graph_sizes import GraphSize
from service.runner.recorded_steps import RecordedSteps
from tests.examples import examples
from tests.lora.peft_adapters import wrapped
from tests.models.checkpoints import (
    gemma3,
    generate_each,
    gpt2,
    llama,
    mistral,
    mixtral,
    opt,
    oracle,
    phi3,
    qwen2,
    qwen3,
    random_prompts,
)
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer, greedy
from tests.runner.uncaptured import without_capture

NUM_TOKENS = 8
PROMPTS = random_prompts(24, longest=90)
LORA = LoraConfig(num_slots=5, max_rank=24)
SLOTS = [0, 4, 1, 2]
"""Of the base and of each adapter."""
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def options(save, number):
    """Other modules, ranks and scales for each adapter."""
    names = {
        opt: ["q_proj", "v_proj", "out_proj", "fc1", "fc2"],
        phi3: ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
        mixtral: ["q_proj", "k_proj", "v_proj", "o_proj"],
        gpt2: ["attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"],
    }.get(save, ["q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
    some = [names, names[:2], names[1:]][number]
    return {"r": [16, 3, 24][number], "lora_alpha": [8, 6, 4][number], "target_modules": some}


@pytest.fixture(
    scope="module",
    params=[llama, mistral, qwen2, qwen3, phi3, gemma3, mixtral, opt, gpt2],
    ids=lambda save: save.__name__,
)
def adapted(request, tmp_path_factory) -> tuple[Path, list[Path], list[dict[int, list[int]]]]:
    """The base's folder, the adapters', and what each of base and adapters makes of the prompts that are its."""
    torch.manual_seed(0)
    folder = request.param(tmp_path_factory.mktemp("model"))
    models, adapters = [oracle(folder)], []
    for number in range(3):
        models.append(wrapped(oracle(folder), number, **options(request.param, number)))
        adapters.append(tmp_path_factory.mktemp("adapter"))
        models[-1].save_pretrained(adapters[-1])
    return folder, adapters, [what_it_makes(model, number) for number, model in enumerate(models)]


NUM_OF_ALL = 8
"""So many prompts the base and each adapter is asked; of the others only those that are its in a mixed batch."""


def what_it_makes(model, number) -> dict[int, list[int]]:
    """By the prompt's index. `number`: of the base and the adapters."""
    asked = [i for i in range(len(PROMPTS)) if i < NUM_OF_ALL or i % 4 == number]
    return dict(zip(asked, generate_each(model, [PROMPTS[i] for i in asked], NUM_TOKENS), strict=True))


class Served:
    """The base with its adapters in their slots."""

    def __init__(self, folder: Path, adapters: list[Path], **how) -> None:
        self.loaded = load(folder, lora=LORA, **how)
        self.store = self.loaded.adapters
        self.held = [self.store.read(f"adapter-{i}", each) for i, each in enumerate(adapters)]
        self.free = self.loaded.num_blocks
        for slot, adapter in zip(SLOTS[1:], self.held, strict=True):
            self.put(slot, adapter)

    def put(self, slot, adapter):
        self.free -= adapter.num_blocks
        # Neither in order nor one behind another.
        block_ids = tuple(reversed(range(self.free, self.free + adapter.num_blocks)))
        self.loaded.runner.launch(IterationPlan((), adapter_loads=(AdapterLoad(slot, adapter.adapter_id, block_ids),)))

    def generate(self, prompts, slots, **how):
        player = PlanPlayer(self.loaded.runner, self.free, self.loaded.runner.storage.layout.block_size)
        return player.generate(prompts, greedy(NUM_TOKENS), adapter_slots=slots, **how)


def mixed(want):
    whose = [i % 4 for i in range(len(PROMPTS))]
    return [SLOTS[number] for number in whose], [want[number][i] for i, number in enumerate(whose)]


def first(many, made):
    return [made[i] for i in range(many)]


@pytest.mark.each_once
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", [{"max_seqs": 1}, {}, {"chunk": 17, "max_seqs": 7}], ids=str)
def test_each_request_gets_what_peft_makes_of_it(adapted, how, device):
    folder, adapters, want = adapted
    served = Served(folder, adapters, device=device)
    slots, wanted = mixed(want)
    number = examples(8) if how.get("max_seqs") == 1 else len(PROMPTS)
    assert served.generate(PROMPTS[:number], slots[:number], **how) == wanted[:number]
    alone = served.generate(PROMPTS[:5], [SLOTS[1]] * 5, **how)
    assert alone == first(5, want[1])
    assert served.generate(PROMPTS[:5], [0] * 5, **how) == first(5, want[0])
    assert any(want[0][i] != want[1][i] for i in range(5)), "the adapter changes something"


@pytest.mark.some(5)
def test_graphs_with_adapters_and_without_draw_what_steps_without_graphs_draw(adapted, monkeypatch):
    folder, adapters, want = adapted
    without_capture(monkeypatch)
    served = Served(folder, adapters)
    runner = served.loaded.runner
    sizes = [GraphSize(32, 32), GraphSize(8, 8), GraphSize(128, 32), GraphSize(64, 16)]
    runner.replays.capture(sizes)
    runner.replays.capture(sizes, adapters=True)
    slots, wanted = mixed(want)
    assert served.generate(PROMPTS, slots, chunk=40, max_seqs=12) == wanted
    assert served.generate(PROMPTS[:8], [0] * 8, chunk=40) == first(8, want[0])
    taken = {step.size for step in runner.replays.recent_steps(adapters=True)}
    assert len(taken - {None}) == len(sizes), "of every size"


def test_padding_alone_is_computed_with_adapters_and_changes_nothing(adapted):
    folder, adapters, want = adapted
    served = Served(folder, adapters)
    served.loaded.runner.replays.compute_padding(GraphSize(512, 1), adapters=True)
    assert served.generate(PROMPTS[:2], [SLOTS[1], 0]) == [want[1][0], want[0][1]]


def test_recorded_steps_of_a_cpu_draw_what_plain_ones_do(tmp_path):
    if cpu_loops() is None:
        pytest.skip("this machine runs no compiled loops")
    folder = llama(tmp_path / "model", head_dim=32)
    adapters = [tmp_path / f"adapter-{number}" for number in range(3)]
    for number, each in enumerate(adapters):
        wrapped(oracle(folder), number, **options(llama, number)).save_pretrained(each)
    slots = [SLOTS[i % 4] for i in range(len(PROMPTS))]
    plain, recorded = (Served(folder, adapters, dtype="bfloat16", enforce_eager=eager) for eager in (True, False))
    assert recorded.generate(PROMPTS, slots, max_seqs=9) == plain.generate(PROMPTS, slots, max_seqs=9)
    (way,) = (way for way in recorded.loaded.runner.replays.ways if isinstance(way, RecordedSteps))
    assert {kind.adapters for kind in way._recorded} == {True} and not way._refused
    assert recorded.generate(PROMPTS[:4], [0] * 4) == plain.generate(PROMPTS[:4], [0] * 4)
    assert {kind.adapters for kind in way._recorded} == {True, False}


def test_blocks_of_a_token_hold_them_too(adapted):
    folder, adapters, want = adapted
    slots, wanted = mixed(want)
    # Phi-3 has gate and up in one matrix, whose rows are wider than the keys and values of one token here.
    block_size = 2 if AutoConfig.from_pretrained(folder).model_type == "phi3" else 1
    assert Served(folder, adapters, block_size=block_size).generate(PROMPTS, slots) == wanted


def test_a_slot_serves_another_adapter(adapted):
    folder, adapters, want = adapted
    served = Served(folder, adapters)
    served.put(SLOTS[1], served.held[2])
    assert served.generate(PROMPTS[:3], [SLOTS[1], SLOTS[2], SLOTS[3]]) == [want[3][0], want[2][1], want[3][2]]


@pytest.mark.some(3)
def test_parts_of_a_step_that_does_not_fit_the_memory(adapted, monkeypatch):
    """As whole ones: the forward pass is cut into tokens one to seven."""
    folder, adapters, want = adapted
    served = Served(folder, adapters)
    slots, wanted = mixed(want)
    compute = served.loaded.runner._forward_pass.compute

    def limited(token_ids, *rest):
        if len(token_ids) > 7:
            raise torch.OutOfMemoryError
        return compute(token_ids, *rest)

    monkeypatch.setattr(served.loaded.runner._forward_pass, "compute", limited)
    assert served.generate(PROMPTS[:6], slots[:6]) == wanted[:6]


def test_an_adapter_that_nobody_has_is_gone(adapted):
    folder, adapters, _ = adapted
    served = Served(folder, adapters)
    adapter_id = served.held[0].adapter_id
    assert served.store.num_bytes > 0
    served.held.clear()
    assert served.store.num_bytes == 0
    with pytest.raises(KeyError):
        served.store.packed(adapter_id)
