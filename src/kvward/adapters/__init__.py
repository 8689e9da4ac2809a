"""ENFORCE inside engines: one package for each engine, none imports another."""
