from loadtest.parity.prompts import default_prompts


def test_they_are_of_many_lengths_and_all_different():
    prompts = default_prompts()
    assert len(set(prompts)) == len(prompts) == 32
    assert {len(prompt.split()) for prompt in prompts} >= {1, 3, 6, 12, 24, 48, 96}
