"""The evidence: an append-only log of what happened, that a stranger can verify offline.

The side that verifies (`merkle`, `note`, `checkpoint`, `entry`, `tiles`, `proof`, `verify`) never
imports the side that writes (`writer`, `sink`, `fsck`).
"""
