"""`headrace bench`: measurements without HTTP, each beside the device's limit. `composition` hands the engine in."""
