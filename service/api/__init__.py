"""The HTTP surface. Runs on the event-loop thread.

Built by `app.create_app`; `serving_state.ServingState` is how the process tells it what it may serve. A request passes
through `middleware`; its endpoint prepares the call (`calls`), submits it, and frames the answer (`answers`). A new
wire form of a call needs an endpoint, a conversion of its fields to those of `calls`, and an `AnswerForm`.
"""
