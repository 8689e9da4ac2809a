"""Guess, from names and bytes of a store alone, what is cached and whether two tenants share it."""
