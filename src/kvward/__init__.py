"""kvward: an isolation ward for LLM KV caches."""

__version__ = "0.1.0"
