"""Answer a sealed store with bytes that it must not open, a million times in every way we know."""
