"""Settings of all tests."""

from hypothesis import settings

# No deadline: how long an example takes says more about the machine than about the code.
settings.register_profile("kvward", deadline=None, print_blob=True)
settings.load_profile("kvward")
