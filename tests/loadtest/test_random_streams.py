from loadtest.random_streams import random_stream


def test_same_arguments_same_stream() -> None:
    assert random_stream(3, "a", 1).random(5).tolist() == random_stream(3, "a", 1).random(5).tolist()


def test_purpose_seed_and_ids_split_streams() -> None:
    firsts = [random_stream(*key).random() for key in ((3, "a"), (3, "b"), (4, "a"), (3, "a", 1), (3, "a", 2))]
    assert len(set(firsts)) == len(firsts)
