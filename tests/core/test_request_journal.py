from __future__ import annotations

from service.core.request_journal import MAX_CHUNKS_KEPT, MAX_WAITS_KEPT, RequestJournal


def test_a_wait_has_the_reason_of_the_last_refusal_in_it() -> None:
    journal = RequestJournal(arrival_s=1.0)
    journal.note_start(2.0, refused_s=1.5, reason="memory")
    journal.note_pause(3.0)
    journal.note_start(4.0, refused_s=1.5, reason="memory")
    assert [tuple(wait) for wait in journal.waits] == [(1.0, 2.0, "memory"), (3.0, 4.0, "iteration")]


def test_iterations_are_the_chunks_and_the_tokens_that_no_chunk_drew() -> None:
    journal = RequestJournal(0.0)
    journal.note_chunk(0.0, 16, draws=False)
    journal.note_chunk(0.1, 4, draws=True)
    assert journal.num_iterations(1) == 2
    assert journal.num_iterations(10) == 11
    journal.note_chunk(0.9, 29, draws=True)  # came back from a preemption, and drew the eleventh
    assert journal.num_iterations(11) == 12
    journal.num_accepted = 3
    assert journal.num_iterations(18) == 16


def test_what_is_kept_is_bounded() -> None:
    journal = RequestJournal(0.0)
    for index in range(100):
        journal.note_pause(index)
        journal.note_start(index, index, "tokens")
        journal.note_chunk(index, 2, draws=False)
    assert (len(journal.waits), len(journal.chunks)) == (MAX_WAITS_KEPT, MAX_CHUNKS_KEPT)
    assert journal.num_chunks == 100
    assert journal.chunks[-1].at_s == 99
