"""Batches: files of requests that run between the others' requests, and whose answers are files again.

On the event loop; files are read and written in threads. Every line goes through the door as any client's request.
"""
