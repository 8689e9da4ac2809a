"""Detectors: pure functions from what was seen to what was found. They know no target."""
