"""`headrace bench`: measurements without HTTP, each beside the device's limit. main.py hands the engine in."""
