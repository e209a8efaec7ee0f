"""Facts -> Prometheus. The recorder is called from the engine thread and the event loop; a scrape reads from any."""
