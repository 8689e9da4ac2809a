"""ENFORCE inside vLLM: its connector, and a doctor for its settings."""
