"""Errors show their mend wherever they surface."""

from __future__ import annotations

import pickle
import traceback

from kvward.errors import ConfigError


def test_a_traceback_shows_the_next_step() -> None:
    error = ConfigError("It is not there.", hint="Put it there.")
    assert str(error) == "It is not there."
    shown = "".join(traceback.format_exception(error))
    assert "It is not there.\nNext: Put it there." in shown
    assert "Next:" not in "".join(traceback.format_exception(ConfigError("It is not there.")))


def test_the_next_step_survives_another_process() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("It is not there.", hint="Put it there.")))
    assert error.hint == "Put it there."
    assert "".join(traceback.format_exception(error)).count("Next: Put it there.") == 1
