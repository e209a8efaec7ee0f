"""How the work for a client's bytes grows: twice the bytes, at most about twice the work."""
