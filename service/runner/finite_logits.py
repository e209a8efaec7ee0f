"""Whether the loaded model gives finite logits: a few prompts are computed before it is called ready."""

from __future__ import annotations

import logging

from service.core.iteration import INVALID_TOKEN_ID, IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import Sample, ScheduledSequence
from service.runner.model_runner import ModelRunner

logger = logging.getLogger(__name__)

_MOST_PROMPTS = 8


def has_finite_logits(runner: ModelRunner, *, most_prompts: int, block_size: int, vocab_size: int) -> bool:
    """Whether at least one of a few prompts, with tokens from all over the vocabulary, gives only finite logits.

    Runs one iteration, drawn greedily. Returns True on a stage that does not draw. If only some prompts fail, that is
    logged, since the model can still answer others. Call it while no sequence is alive: it overwrites the blocks of the
    first `most_prompts` units. most_prompts: how many prompts an iteration may have.
    """
    num_prompts = min(_MOST_PROMPTS, most_prompts, vocab_size)
    first_ids = [number * vocab_size // num_prompts for number in range(num_prompts)]
    greedy, num_groups = SamplingParams(max_tokens=1, temperature=0.0), runner.storage.layout.num_groups
    prompts = tuple(
        ScheduledSequence(
            -1 - number,
            1 + number,
            (token_id, (token_id + 1) % vocab_size)[:block_size],
            0,
            0,
            tuple(range(number * num_groups, (number + 1) * num_groups)),
            greedy,
            (Sample(-1 - number, 0),),
        )
        for number, token_id in enumerate(first_ids)
    )
    drawn = runner.launch(IterationPlan(prompts)).wait().token_ids
    runner.launch(IterationPlan((), released=tuple(prompt.row for prompt in prompts))).wait()
    if not drawn:  # by another stage
        return True
    failed = [token_id for token_id, drew in zip(first_ids, drawn, strict=True) if drew == INVALID_TOKEN_ID]
    if failed and len(failed) < num_prompts:
        logger.warning("the model's logits are not finite after these tokens: %s", failed)
    return len(failed) < num_prompts
