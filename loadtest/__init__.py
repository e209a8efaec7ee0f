"""Open-loop load generator for any OpenAI-compatible server, its workloads, and its reports.

It tests servers from the outside: it speaks HTTP and imports nothing of the service. Every time in this
package is in seconds on `time.perf_counter`'s clock (one clock for all processes of a machine) unless its
name ends in `_ms`.
"""
