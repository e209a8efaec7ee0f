"""A submitted call -> its answer: tokens to text, to frames of a stream or one JSON body."""
