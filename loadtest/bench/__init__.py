"""`python -m loadtest.bench`: measurements of this house without HTTP, each beside the device's limit."""
