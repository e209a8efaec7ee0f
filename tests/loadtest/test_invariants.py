from loadtest.invariants import Invariant, invariant_table


def test_what_is_not_known_does_not_hold() -> None:
    assert Invariant("a", 1.0, 1.0).holds
    assert not Invariant("a", 1.1, 1.0).holds
    assert not Invariant("a", None, 1.0).holds


def test_a_broken_invariant_stands_out() -> None:
    table = invariant_table([Invariant("a", 1, 2), Invariant("b", 3000, 2), Invariant("c", None, 2)])
    good, bad, unknown = table.splitlines()[1:]
    assert "BROKEN" not in good
    assert bad.split() == ["b", "3,000", "2", "BROKEN"]
    assert unknown.split() == ["c", "unknown", "2", "BROKEN"]
