"""The HTTP surface: routes, validation, SSE framing, auth. Runs on the event-loop thread.

Built by `app.create_app`; `serving_state.ServingState` is how the process tells it what it may serve.
"""
