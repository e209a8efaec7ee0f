"""Facts -> Prometheus. The recorder is called from the engine thread and the event loop; a scrape reads from any
thread.

Made in `main.py`: a private CollectorRegistry, `Instruments` in it, and one `Recorder`, which both the engine (as its
StatsSink) and `create_app` get. Registered beside them and read at each scrape: `HostSeconds`, which has the recorder's
times, `LiveGauges` and (unless `metrics_compat` is none) `VllmNames`, both with a function that returns the engine's
snapshot or None.
"""
