"""Answers of transformers' `generate`: the oracle."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from loadtest.parity.comparison import Answer, Judged, first_difference
from loadtest.parity.headrace_side import Prompt


class TransformersSide:
    """The model in that dtype on that device. Answers have `max_tokens` tokens; end-of-sequence tokens are ignored."""

    def __init__(self, folder: Path, dtype: torch.dtype, device: str, max_tokens: int) -> None:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval().to(device)
        settings = model.generation_config
        settings.eos_token_id = None
        # Sampling settings of the checkpoint must not affect greedy search.
        settings.temperature = settings.top_p = settings.top_k = settings.repetition_penalty = None
        self._model = model
        self._device = device
        self._max_tokens = max_tokens

    def judged(self, prompts: Sequence[Prompt], answers: Sequence[Sequence[Answer]]) -> list[list[Judged]]:
        """Its own greedy answer to each prompt alone, and its logprobs of our answers. answers: several lists, each by
        prompt; the result has one list for each."""
        of_prompts = [self._judge(prompt, given) for prompt, *given in zip(prompts, *answers, strict=True)]
        return [list(judged) for judged in zip(*of_prompts, strict=True)]

    @torch.inference_mode()
    def at_once(self, prompts: Sequence[Prompt]) -> list[tuple[int, ...]]:
        """Its greedy answers to all prompts in one batch, left-padded."""
        longest = max(map(len, prompts))
        ids = torch.zeros(len(prompts), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        made = self._generate(ids, mask)
        return [tuple(row) for row in made.sequences[:, longest:].tolist()]

    @torch.inference_mode()
    def beams(self, prompt: Prompt, width: int) -> list[tuple[int, ...]]:
        """All `width` beams, best first."""
        ids = torch.tensor([prompt])
        made = self._generate(ids, torch.ones_like(ids), num_beams=width, num_return_sequences=width)
        return [tuple(row) for row in made.sequences[:, len(prompt) :].tolist()]

    @torch.inference_mode()
    def total_logprob(self, prompt: Prompt, token_ids: Sequence[int]) -> float:
        """Sum over the tokens that follow the prompt."""
        ids = torch.tensor([[*prompt, *token_ids]], device=self._device)
        logits = self._model(ids).logits[0, len(prompt) - 1 : -1]
        return sum(_chosen(logits.float().log_softmax(-1), token_ids))

    @torch.inference_mode()
    def _judge(self, prompt: Prompt, answers: Sequence[Answer]) -> list[Judged]:
        ids = torch.tensor([prompt])
        made = self._generate(ids, torch.ones_like(ids), output_logits=True)
        token_ids = tuple(made.sequences[0, len(prompt) :].tolist())
        logprobs = torch.cat(made.logits).float().log_softmax(-1)
        theirs = Answer(token_ids, _chosen(logprobs, token_ids))
        judged = []
        for answer in answers:
            place = first_difference(answer.token_ids, token_ids)
            num = len(token_ids) if place is None else place + 1
            judged.append(Judged(theirs, _chosen(logprobs, answer.token_ids[:num])))
        return judged

    def _generate(self, ids: Tensor, mask: Tensor, **options: object) -> Any:
        return self._model.generate(
            ids.to(self._device),
            attention_mask=mask.to(self._device),
            max_new_tokens=self._max_tokens,
            do_sample=False,
            pad_token_id=0,
            return_dict_in_generate=True,
            **options,
        )


def _chosen(logprobs: Tensor, token_ids: Sequence[int]) -> tuple[float, ...]:
    """logprobs [T, V]: for each t, the logprob of token_ids[t] in row t."""
    chosen = torch.tensor(token_ids, device=logprobs.device).unsqueeze(1)
    return tuple(logprobs[: len(token_ids)].gather(1, chosen).squeeze(1).tolist())
