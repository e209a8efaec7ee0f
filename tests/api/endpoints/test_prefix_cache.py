from __future__ import annotations

from dataclasses import replace

import httpx

from tests.api.running_server import Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of

RESET = "/reset_prefix_cache"
ADMIN = {"Authorization": "Bearer sk-admin"}


def test_a_reset_leaves_nothing_to_be_found_and_what_comes_later_is_found_again() -> None:
    config = replace(Scene().config, admin_api_keys=("sk-admin",), prefix_cache_scope="all")
    scene = Scene(config=config, finds_prefixes=True)
    with running(scene) as server, httpx.Client(base_url=server.base_url, headers=ADMIN) as http:

        def cached() -> int:
            usage = http.post(COMPLETIONS, json=completion(prompt=list(range(20, 60)))).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [cached(), cached() > 0] == [0, True]
        assert http.post(RESET).status_code == 200
        assert [cached(), cached() > 0] == [0, True]
        assert http.get(RESET).status_code == 405


def test_only_an_operator_may() -> None:
    config = replace(Scene().config, admin_api_keys=("sk-admin",))
    with running(Scene(config=config)) as server:
        assert httpx.post(f"{server.base_url}{RESET}").status_code == 401
    with running() as server:
        assert error_of(httpx.post(f"{server.base_url}{RESET}"))["code"] == "permission_denied"
