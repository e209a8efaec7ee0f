"""Batches: files of requests that run in between other requests, and whose answers become files again.

Event loop; files are read and written in threads. Every line is handled by the API like any client's request.
"""
