"""`python -m loadtest.bench`: measurements of our own code without HTTP, each beside the device's limit."""
