"""Ray's own prefix-aware request router, for calls that have a prompt; the others go where fewer calls are.

It is taken from where `ray.serve.llm` has it, since that package's public name wants vLLM to be installed.
"""

from __future__ import annotations

from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router import PrefixCacheAffinityRouter

from service.ray_serve.call import Call


class PrefixRouter(PrefixCacheAffinityRouter):  # type: ignore[misc]  # Ray is not looked at: it is an extra
    """Serve makes it, in the process of the ingress."""

    async def choose_replicas(self, candidate_replicas: Any, pending_request: Any = None) -> Any:
        """Without a request the router of Ray chooses by calls in flight."""
        asked = pending_request if _has_prompt(pending_request) else None
        return await super().choose_replicas(candidate_replicas, asked)

    def on_request_routed(self, pending_request: Any, replica_id: Any, result: Any) -> None:
        """The prompt is remembered for that replica."""
        if _has_prompt(pending_request):
            super().on_request_routed(pending_request, replica_id, result)


def _has_prompt(pending_request: Any) -> bool:
    calls = [] if pending_request is None else [a for a in pending_request.args or () if isinstance(a, Call)]
    return any(call.prompt for call in calls)
