"""One route or two a file: read the body, prepare the call, submit it, answer."""
