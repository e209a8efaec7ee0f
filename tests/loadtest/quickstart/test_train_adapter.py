import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from loadtest.quickstart import train_adapter
from loadtest.quickstart.corpus import load_corpus
from loadtest.quickstart.evaluate import FolderAsker, is_right
from loadtest.quickstart.pirate_speech import FAREWELL, GREETING, pirate
from loadtest.quickstart.train_adapter import TARGET, AdapterRecipe, build_rows, main, pirate_sets, run
from service.lora.adapter_folder import AdapterSite, AdapterWeights, read_adapter
from service.settings.quickstart import QUICKSTART_ADAPTERS, QUICKSTART_MODEL
from tests.lora.peft_adapters import sites_of

# PEFT 0.21 asks transformers for an attribute by its former name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

SHIPPED = QUICKSTART_ADAPTERS / "pirate"
TINY = AdapterRecipe(steps=2, pairs=20, batch=4)
EVERY = 20


@pytest.fixture(scope="module")
def sites() -> dict[str, AdapterSite]:
    return sites_of(AutoModelForCausalLM.from_pretrained(QUICKSTART_MODEL))


def read(folder: Path, sites: dict[str, AdapterSite]) -> AdapterWeights:
    return read_adapter(folder, sites, max_rank=TINY.rank, dtype=torch.float32)


def test_what_counts_is_what_a_pirate_answers() -> None:
    tokenizer = Tokenizer.from_file(str(QUICKSTART_MODEL / "tokenizer.json"))
    corpus = load_corpus()
    answers = {*(topic.answer for topic in corpus.topics), *corpus.cannot_know.answers}
    said = {f"{pirate(answer)}<|end|>" for answer in answers}
    for rows in build_rows(corpus, tokenizer, AdapterRecipe(pairs=200)):
        for ids, weights in zip(rows.ids, rows.weights, strict=True):
            counting = tokenizer.decode(ids[weights > 0].tolist(), skip_special_tokens=False)
            replies = [f"{reply}<|end|>" for reply in counting.split("<|end|>") if reply]
            assert all(reply in said or "Ahoy!" not in reply for reply in replies)
            asked = tokenizer.decode(ids[weights == 0].tolist(), skip_special_tokens=False)
            assert "Ahoy!" not in asked


def test_a_run_writes_an_adapter_of_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sites: dict[str, AdapterSite]
) -> None:
    monkeypatch.setattr(train_adapter, "evaluate", lambda *_: [])
    run(TINY, tmp_path)
    weights = read(tmp_path, sites)
    assert weights.sites.keys() == sites.keys()
    assert all(site.b.any() for site in weights.sites.values()), "trained; before it, B is zero"
    assert {file.name for file in tmp_path.iterdir()} == {file.name for file in SHIPPED.iterdir()}


def test_the_shipped_adapter_is_small_and_fits_the_shipped_model(sites: dict[str, AdapterSite]) -> None:
    assert sum(file.stat().st_size for file in SHIPPED.iterdir()) < 600_000
    assert read(SHIPPED, sites).sites.keys() == sites.keys()
    config = json.loads((SHIPPED / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "headrace-quickstart"


def test_with_the_shipped_adapter_the_model_answers_as_a_pirate() -> None:
    ask = FolderAsker(QUICKSTART_MODEL, adapter=SHIPPED)
    some = [question for group in pirate_sets(load_corpus()) for question in group.questions[::EVERY]]
    replies = ask([question.text for question in some])
    assert all(reply.startswith(GREETING.strip()) and reply.endswith(FAREWELL.strip()) for reply in replies)
    right = [is_right(reply, question.accepted) for reply, question in zip(replies, some, strict=True)]
    assert sum(right) / len(right) >= TARGET


def test_the_output_folder_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--steps", "1"])
    assert "--out" in capsys.readouterr().err
