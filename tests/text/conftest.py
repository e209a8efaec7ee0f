"""No deadlines for Hypothesis: the machine that runs the tests does other things too."""

from hypothesis import settings

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
