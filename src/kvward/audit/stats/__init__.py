"""The statistics of an audit. Pure functions of numbers; they know no target and no history."""
