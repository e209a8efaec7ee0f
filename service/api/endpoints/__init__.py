"""One or two routes per file: read the body, prepare the call, submit it, answer."""
