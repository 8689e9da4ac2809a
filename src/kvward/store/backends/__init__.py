"""Backends. Each imports its own client; none imports another."""
