from collections import Counter

from loadtest.fuzz.cases import make_case
from loadtest.fuzz.reading import Rest, read_requests


def test_a_case_is_made_from_seed_and_number_alone() -> None:
    assert make_case(1, 7) == make_case(1, 7)
    assert make_case(1, 7).data != make_case(2, 7).data


def test_the_pieces_are_all_of_it() -> None:
    for number in range(300):
        case = make_case(0, number)
        assert sum(case.pieces) == len(case.data)
        assert all(case.pieces) or not case.data


def test_what_is_called_valid_is_and_every_kind_of_ending_occurs() -> None:
    cases = [make_case(0, number, stall_every=20) for number in range(2000)]
    rests = Counter(read_requests(case.data).rest for case in cases)
    assert all(rests[rest] > 100 for rest in Rest), rests
    valid = [read_requests(case.data) for case in cases if case.kind == "valid"]
    assert all(read.requests and read.rest in (Rest.NOTHING, Rest.UNREAD) for read in valid)
    assert sum(case.stalls for case in cases) > 50
    assert len({case.kind for case in cases}) > 12
