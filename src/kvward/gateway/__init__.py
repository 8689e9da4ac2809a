"""ENFORCE at the edge: an authenticating reverse proxy that decides the cache scope. Pure ASGI."""

from kvward.gateway.app import create_gateway
from kvward.gateway.identity import generate_api_key
from kvward.gateway.policy import Policy, TenantPolicy, make_policy, read_policy, render_policy

__all__ = [
    "Policy",
    "TenantPolicy",
    "create_gateway",
    "generate_api_key",
    "make_policy",
    "read_policy",
    "render_policy",
]
