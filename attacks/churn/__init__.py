"""Churn: many tenants at once, blocks handed round fast, and clients that go away at any moment."""
