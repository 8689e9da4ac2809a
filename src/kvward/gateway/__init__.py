"""ENFORCE at the edge: an authenticating gateway that decides the cache scope. Pure ASGI.

Two deployments of one front: a reverse proxy, and middleware inside vLLM (`kvward.gateway.vllm`).
"""

from kvward.gateway.app import create_gateway
from kvward.gateway.identity import generate_api_key
from kvward.gateway.policy import Policy, TenantPolicy, make_policy, read_policy, render_policy
from kvward.gateway.promise import honour_policy_contract
from kvward.gateway.setup import load_credential, open_issuer
from kvward.gateway.summary import summarise_policy

__all__ = [
    "Policy",
    "TenantPolicy",
    "create_gateway",
    "generate_api_key",
    "honour_policy_contract",
    "load_credential",
    "make_policy",
    "open_issuer",
    "read_policy",
    "render_policy",
    "summarise_policy",
]
