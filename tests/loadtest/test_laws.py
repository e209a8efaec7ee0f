from loadtest.laws import Law, law_table


def test_what_is_not_known_does_not_hold() -> None:
    assert Law("a", 1.0, 1.0).holds
    assert not Law("a", 1.1, 1.0).holds
    assert not Law("a", None, 1.0).holds


def test_a_broken_law_stands_out() -> None:
    good, bad, unknown = law_table([Law("a", 1, 2), Law("b", 3000, 2), Law("c", None, 2)]).splitlines()[1:]
    assert "BROKEN" not in good
    assert bad.split() == ["b", "3,000", "2", "BROKEN"]
    assert unknown.split() == ["c", "unknown", "2", "BROKEN"]
