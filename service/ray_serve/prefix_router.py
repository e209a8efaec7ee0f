"""Ray's own prefix-aware request router for calls with a prompt; other calls go where fewer calls are in flight.

It is imported from its internal place in `ray.serve.llm`, since that package's public name requires vLLM.
"""

from __future__ import annotations

from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter

from service.ray_serve.call import Call


class PrefixRouter(PrefixCacheAffinityRouter):  # type: ignore[misc]  # Ray is not looked at: it is an extra
    """Serve makes it, in the process of the ingress."""

    async def choose_replicas(self, candidate_replicas: Any, pending_request: Any = None) -> Any:
        """Without a request, Ray's router chooses by calls in flight."""
        asked = pending_request if _has_prompt(pending_request) else None
        return await super().choose_replicas(candidate_replicas, asked)

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """Remembers the prompt for that replica."""
        if _has_prompt(pending_request):
            super().on_request_routed(pending_request, replica_id, result)


def _has_prompt(pending_request: Any) -> bool:
    calls = [] if pending_request is None else [a for a in pending_request.args or () if isinstance(a, Call)]
    return any(call.prompt for call in calls)
