"""GET /tokenizer_info: what clients need to tokenize as this server does, as in vLLM."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext

_PATHS = frozenset({"name_or_path", "tokenizer_file", "special_tokens_map_file", "vocab_file", "merges_file"})
"""Fields that may hold paths of the machine where the model was made."""


class TokenizerInfo:
    def __init__(self, context: ApiContext) -> None:
        self._state = context.state

    async def get(self, http: Request) -> Response:
        model = self._state.check_loaded()
        template = None if model.chat_template is None else model.chat_template.source
        facts = shown(model.tokenizer_options) | {"chat_template": template}
        # json writes integers of any size: many models have a `model_max_length` of 10^30, which means none.
        return Response(json.dumps(facts), media_type="application/json")


def shown(options: Mapping[str, object]) -> dict[str, object]:
    """The options without paths; the class is always among them."""
    without = {name: value for name, value in options.items() if name not in _PATHS}
    return {"tokenizer_class": "PreTrainedTokenizerFast"} | without
