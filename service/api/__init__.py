"""The HTTP surface. Runs on the event-loop thread.

Built by `app.create_app`; `serving_state.ServingState` is how the process tells it what it may serve. A request passes
`middleware`; its endpoint prepares the call (`calls`), submits it, and frames the answer (`answers`). To take a call in
another wire form is an endpoint, a way from its fields to those of `calls`, and an `AnswerForm`.
"""
