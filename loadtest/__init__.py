"""Open-loop load generator for any OpenAI-compatible server, its workloads, and its reports.

The generator (`python -m loadtest`) tests servers from the outside: it speaks HTTP and imports nothing of the service.
Measurements of the service itself stand beside it and do import it: `host_server.py`, `deciding_cost.py`,
`stream_cost.py`, `frame_cost.py`, and the papers' figures with what they compare (`scenarios`, `baselines`). Every time
that the generator records is in seconds on `time.perf_counter`'s clock (one clock for all processes of a machine)
unless its name ends in `_ms`.
"""
