"""A tied head of one rank of several multiplies by its part of the embedding."""

from __future__ import annotations

import torch

from service.layers.tensor_parallel import Planned
from service.models.transformers_backend.vocabulary import Vocabulary
from tests.models.transformers_backend.models import llama_config, meta_model


def test_a_tied_head_has_its_ids_of_the_embedding_and_padding_behind_the_last():
    for rank, ids in ((0, range(160)), (1, range(160, 301))):
        model = meta_model(llama_config(tie_word_embeddings=True))
        vocabulary, place = Vocabulary(model), Planned(2)
        place.rank = rank
        vocabulary.shard(place)
        embedding = model.get_input_embeddings()
        weight = torch.randn(embedding.weight.shape)
        embedding.weight = torch.nn.Parameter(weight, requires_grad=False)
        assert vocabulary.head.ids == ids
        assert torch.equal(vocabulary.head.plain_weight, weight[ids.start : ids.start + 160])
        assert torch.equal(vocabulary.without_padding(embedding.weight), weight[:301])
