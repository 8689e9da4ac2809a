"""A small real inference engine that can be broken on purpose. Never a serving engine."""
