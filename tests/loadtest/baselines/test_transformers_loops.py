import pytest

from loadtest.baselines.transformers_loops import TransformersGenerate, TransformersGenerateBatch, random_model
from loadtest.model_shapes import LLAMA_2_LAYERS
from loadtest.offline.replay import replay
from loadtest.offline.work_clock import WorkClock
from tests.loadtest.baselines.pools import request


def test_generate_takes_whole_batches() -> None:
    pytest.importorskip("transformers")
    model = random_model(LLAMA_2_LAYERS, "float32", "cpu")
    outcome = replay(TransformersGenerate(model, WorkClock(), 2), [request(i, 4 + i, 2 + i) for i in range(3)])
    assert [i.batch_size for i in outcome.iterations] == [2, 1]
    assert [c.num_output_tokens for c in outcome.completions] == [2, 3, 4]
    assert outcome.completions[0].finished_s == outcome.completions[1].finished_s


def test_generate_batch_wants_equal_lengths() -> None:
    system = TransformersGenerateBatch(None, WorkClock(), 256)
    for i in range(2):
        system.submit(request(i, 4, 2 + i))
    with pytest.raises(ValueError, match="one output length"):
        system.step()
