"""Open-loop load generator for any OpenAI-compatible server, its workloads, and its reports.

The generator (`python -m loadtest`) tests servers from the outside: it speaks HTTP and imports nothing of the service.
Measurements of the service's own parts do import it: `host_server.py`, `deciding_cost.py`, `stream_cost.py`,
`frame_cost.py`, the papers' figures (`scenarios`) and the systems that these compare with (`baselines`).
Every time that the generator records is in seconds on `time.perf_counter`'s clock (one clock for all processes of a
machine), unless its name ends in `_ms`.
"""
