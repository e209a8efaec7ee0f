"""The step (decide, execute, apply), its thread and the one crossing between that thread and the event loop.

No torch: the executor is handed in through `ports.py`.
"""
