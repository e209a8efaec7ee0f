"""Long and dense histories with settings of every kind, which short lists of random operations seldom become.

Requests of all kinds share beginnings, arrive faster than they can be served, are cancelled and stopped at any time,
and preempt each other; iterations fail. In every case each request gets its own tokens, and nothing is left in the end.
"""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.events import Outcome
from service.core.iteration import IterationPlan
from service.core.layer_groups import TableGroups
from service.core.request import Request
from service.errors import ServerError
from service.kvcache.prefix_cache import ChainedPrefixCache, NoPrefixCache
from service.scheduler import arena_lending, chunk_budget, decode_batch
from service.scheduler.chunk_budget import FixedBudget, InPieces
from service.scheduler.deferred_batching import DeferredBatching
from service.scheduler.speculation import Speculation
from tests.engine.faulty_executor import FaultyExecutor
from tests.engine.harness import VOCABULARY, Harness
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_drafts import ToyDrafts
from tests.engine.toy_grammar import ToyGrammar, ToyMasker
from tests.engine.toy_training import STEP_S, ToyListener, ToyTraining, number_after
from tests.examples import examples

MOST_STEPS = 20_000


class SlackAtTimes:
    """Requests never wait for the training, which gets a random slack between iterations, or none."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def admits(self, waited_s: float, step_s: float) -> bool:
        return True

    def slack_s(self, plan: IterationPlan) -> float:
        return self._chance.choice([0.0, 3 * STEP_S, 9 * STEP_S])


class History:
    """touched: (request, choice) ended from outside; choice None: all of the request. members: sequence ids of accepted
    requests."""

    def __init__(self, seed: int, num_lanes: int) -> None:
        self.chance = chance = random.Random(seed)
        self.block_size = block_size = chance.choice([1, 2, 3, 4, 8, 16])
        num_blocks = chance.choice([chance.randint(4, 18), chance.randint(20, 100)]) * (3 if block_size < 3 else 1)
        max_num_seqs = chance.randint(1, 12)
        budget = max_num_seqs + chance.choice([1, 2, 5, 16, 40, 4096])
        delay = chance.choice([0, 0, 1, 2, 5])
        rate = chance.choice([0.0, 0.0, 0.0, 0.01, 0.05])
        waits, launches = (frozenset(i for i in range(1, 1000) if chance.random() < rate) for _ in range(2))
        self.failing_ids = frozenset(range(0, VOCABULARY, 50)) if chance.random() < 0.2 else frozenset[int]()
        apart = random.Random(chance.random())
        window = apart.choice([None, None, 1, 2, 5, 9, 30])
        groups = None if window is None else apart.choice([None, None, TableGroups(1, 1), TableGroups(2, 1)])
        num_blocks *= 1 if groups is None else groups.size
        self.executor = FaultyExecutor(
            waits, frozenset(), launches, num_blocks, delay, block_size, self.failing_ids, window=window, groups=groups
        )
        cache = ChainedPrefixCache(block_size, chance.choice([1, 1, 2, 4]), window=window, groups=groups)
        admission = chance.choice(["on-demand", "on-demand", "reserve", "forecast"])
        self.reserves = admission == "reserve"
        self.harness = Harness(
            num_blocks,
            block_size,
            max_num_seqs,
            budget,
            chance.choice([0, 0, 1, 2]),
            executor=self.executor,
            trainings=self.executor,
            prefix_cache=NoPrefixCache() if chance.random() < 0.1 else cache,
            policy=chance.choice(["fcfs", "fcfs", "priority", "fair", "shares"]),
            admission=admission,
            preemption=SometimesSwap(chance.choice([0.0, 0.5, 1.0])),
            num_host_blocks=chance.choice([0, 1, 3, 8, num_blocks]),
            num_adapter_slots=chance.choice([1, 2, 4]),
            max_preemptions=chance.choice([1, 2, 10, 1_000_000]),
            chunk_budget=chance.choice([FixedBudget, InPieces])(budget),
            overlap=chance.random() < 0.65,
            num_lanes=num_lanes,
            masker=ToyMasker(VOCABULARY),
            training=chance.choice([SlackAtTimes(chance), DeferredBatching(chance.choice([0.0, 0.05, 1.0, inf]))]),
            speculation=self._speculation(max_num_seqs, budget, None if groups else window),
            window=window,
            groups=groups,
        )
        self.executor.moving = self.harness.blocks.swap_space.swapping_sequence_ids
        self.executor.users = self.harness.running_with
        self.executor.holders = self.harness.sequences_with
        digests = [None, None, "twins"]
        self._adapters = [
            self.harness.adapter(chance.randint(1, max(1, num_blocks // 3)), chance.choice(digests))
            for _ in range(chance.choice([0, 0, 1, 2, 3, 6]))
        ]
        trains = chance.random() < 0.8 and num_lanes == 1
        most = chance.choice([0, 1, *(max(1, num_blocks // n) for n in (4, 2, 1))])
        self.training = ToyTraining(1, chance.randint(1, 40), chance.randint(1, 9), most) if trains else None
        self.listener = ToyListener()
        self.members: dict[str, set[int]] = {}
        self.touched: set[tuple[str, int | None]] = set()
        self._beginnings = [[chance.randint(0, 2) for _ in range(4 * block_size + 3)] for _ in range(3)]
        self._num_arriving = chance.choice([0.1, 0.4, 1.5])
        self._num_cancelled = chance.choice([0.0, 0.0, 0.03, 0.2])
        self._num_stopped = chance.choice([0.0, 0.0, 0.05, 0.15])
        self._longest = chance.choice([3, 12, 25, 60])

    def _speculation(self, max_num_seqs: int, budget: int, window: int | None) -> Speculation | None:
        """For half of the histories; many or few of the drafts are right."""
        chance = random.Random(self.chance.random())
        num_drafts, share_right = chance.choice([1, 2, 4]), chance.choice([0.1, 0.7, 0.95])
        if chance.random() < 0.5:
            return None
        return Speculation(
            num_drafts,
            min(budget - 1, max(max_num_seqs, num_drafts + 1)),
            lambda: ToyDrafts(chance, share_right, VOCABULARY, self._weights_of, window),
        )

    def _weights_of(self, sequence_id: int) -> str | None:
        member = self.harness.scheduler.pool.member(sequence_id)
        assert member is not None, "who drafts lives"
        adapter = member[0].request.adapter
        return None if adapter is None else adapter.digest

    def play(self) -> None:
        chance, engine = self.chance, self.harness.engine
        for _ in range(chance.choice([0, 3])):
            self._step()  # a training may begin
        for _ in range(chance.choice([10, 40, 80])):
            for _ in range(int(chance.expovariate(1 / self._num_arriving))):
                self._arrive()
            self._cancel_or_stop()
            self._step()
        for _ in range(MOST_STEPS):
            if not engine.has_work and (self.training is None or self.training.is_over):
                return
            self._cancel_or_stop()
            self._step()
        raise AssertionError("the engine does not come to an end")

    def _step(self) -> None:
        if self.training is not None and not self.training.is_over and not self.harness.scheduler.training.is_runnable:
            self.training.training_id += 1
            self.harness.engine.training.start(self.training, self.listener)  # it goes on, whatever ended it
        self.harness.step()
        groups = self.harness.scheduler.pool.groups()
        assert not (self.reserves and any(g.num_preemptions for g in groups if not g.request.is_background))

    def _arrive(self) -> None:
        request = self._request()
        if self.harness.add(request):
            group = self.harness.scheduler.pool.get(request.request_id)
            assert group is not None
            self.members[request.request_id] = {sequence.sequence_id for sequence in group.sequences}

    def _request(self) -> Request:
        chance, harness = self.chance, self.harness
        prompt = chance.choice(self._beginnings)[: chance.randint(1, 60)]
        prompt += [chance.randint(0, 2) for _ in range(chance.choice([0, 0, 1, 2, 9]))]
        if chance.random() < 0.2:
            del prompt[max(1, len(prompt) // self.block_size * self.block_size) :]
        if harness.tokens and chance.random() < 0.1:  # a conversation goes on
            request_id, choice = chance.choice(list(harness.tokens))
            prompt = [*harness.requests[request_id].prompt_token_ids, *harness.tokens[request_id, choice], 1]
        max_tokens = chance.choice([1, 2, self._longest, *(chance.randint(1, self._longest) for _ in range(3))])
        stops = (
            frozenset(range(0, VOCABULARY, chance.choice([5, 9, 40]))) if chance.random() < 0.3 else frozenset[int]()
        )
        salt, kind = chance.choice(["", "", "", "salt"]), chance.choice(["", "", "", "", *KINDS])
        adapter = chance.choice([None, *self._adapters])
        if kind == "beams":
            width = chance.randint(2, 5)
            stops = frozenset({0, 9, 18}) if stops else stops
            n = chance.randint(1, width)
            return harness.beam_request(tuple(prompt), max_tokens, width, n, stops, salt=salt, adapter=adapter)
        request = harness.request(
            tuple(prompt),
            0 if kind == "no tokens" else max_tokens,
            chance.randint(2, 5) if kind == "choices" or chance.random() < 0.1 else 1,
            chance.randint(0, 3),
            stops,
            salt=salt,
            priority=chance.randint(-1, 1),
            is_background=chance.random() < 0.2,
            client=f"client-{chance.randint(0, 2)}",
            adapter=adapter,
            num_logprobs=0 if kind == "logprobs" else None,
            num_prompt_logprobs=0 if kind in ("prompt logprobs", "no tokens") else None,
            bad_words=((1001, 1002),) if kind == "ids on the host" else (),
        )
        if kind == "grammar":
            grammar = ToyGrammar(chance.randint(1, self._longest), chance.randint(1, 4), chance.random() < 0.2)
            request = replace(request, grammar=grammar)
            harness.requests[request.request_id] = request
        return request

    def _cancel_or_stop(self) -> None:
        chance, engine = self.chance, self.harness.engine
        if self._adapters and chance.random() < 0.02:
            number = chance.randrange(len(self._adapters))
            self.harness.blocks.adapter_slots.forget(self._adapters[number])
            self._adapters[number] = self.harness.adapter(self._adapters[number].num_blocks)
        live = engine.requests.request_ids()
        if live and chance.random() < self._num_cancelled:
            request_id = chance.choice(live)
            if chance.random() < 0.2:
                engine.requests.fail_unless_started(request_id, ServerError("too late"))
            else:
                engine.requests.abort(request_id)
            self.touched.add((request_id, None))
        if live and chance.random() < self._num_stopped:
            request_id, choice = chance.choice(live), chance.randint(0, 3)
            engine.requests.stop_choice(request_id, choice)
            self.touched.add((request_id, choice))
        self.harness.collect()

    def check_end(self) -> None:
        harness = self.harness
        if self.training is not None:
            assert self.training.is_over
            assert all(fault is None or isinstance(fault, ServerError) for fault in self.listener.ends)
            steps_each = self.training.layer_steps_per_iteration
            assert self.training.numbers[-1] == number_after(self.training.num_iterations, steps_each)
        assert set(harness.finals) == set(self.members), "every accepted request ends in one final event"
        for request_id, final in harness.finals.items():
            request, outcome = harness.requests[request_id], final.outcome
            was_hit = bool(self.members[request_id] & self.executor.hit or self.failing_ids)
            is_cursed = isinstance(request.grammar, ToyGrammar) and request.grammar.is_cursed
            was_ended = (request_id, None) in self.touched
            assert outcome is Outcome.FINISHED or was_ended or (outcome is Outcome.FAILED and (was_hit or is_cursed))
            choices = range(request.sampling.n)
            for choice in choices:
                is_whole = outcome is Outcome.FINISHED and (request_id, choice) not in self.touched
                harness.check_against_oracle(request_id, choice, complete=is_whole)
            num_told = sum(len(harness.tokens[request_id, choice]) for choice in choices)
            assert final.stats.num_output_tokens == num_told
        self.executor.failing_launches = self.executor.failing_waits = frozenset()
        harness.check_nothing_left()


KINDS = ("choices", "beams", "grammar", "grammar", "logprobs", "prompt logprobs", "no tokens", "ids on the host")


@settings(max_examples=examples(40), deadline=None)
@given(
    seed=st.integers(0, 2**32), longest_run=st.sampled_from([1, 2, 3, 8, 32]), num_lanes=st.sampled_from([1, 1, 2, 3])
)
@example(seed=13193086, longest_run=1, num_lanes=3)  # a decode that had left the batch held more than its window
def test_whatever_happens_each_gets_its_own_tokens_and_nothing_is_left(seed: int, longest_run: int, num_lanes: int):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode_batch, "LONGEST_RUN", longest_run)
        for name, tokens in (("PIECE", 6), ("USUAL_TOKENS", 12), ("DEEP_QUEUE", 2), ("FEW_A_DECODE", 2)):
            patch.setattr(chunk_budget, name, tokens)
        patch.setattr(arena_lending, "FIRST_PAUSE_S", 0.02)
        patch.setattr(arena_lending, "LONGEST_PAUSE_S", 0.1)
        patch.setattr(arena_lending, "MOST_OCCUPIED", 0.5 + seed % 3 / 4)
        history = History(seed, num_lanes)
        history.play()
    history.check_end()
