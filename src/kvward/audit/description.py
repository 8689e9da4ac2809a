"""The description of a target: what was audited, as one digest that names it.

Two audits of one target have one digest, whatever their seeds and sizes. It holds no key, and who
only has the digest learns neither address nor model.
"""

from __future__ import annotations

import hashlib

from kvward.audit.plan import Plan
from kvward.canonical import encode

_LABEL = "kvward/audit-target/v1"


def describe_target(plan: Plan) -> bytes:
    """Return the canonical description of a plan's target: addresses, models, preset and tier."""
    return encode(
        _LABEL,
        plan.url,
        list(plan.replicas),
        plan.model,
        plan.other_model,
        plan.preset,
        plan.cache_tier.value,
    )


def target_digest(plan: Plan) -> str:
    """Return the SHA-256 of the description, in hex."""
    return hashlib.sha256(describe_target(plan)).hexdigest()
