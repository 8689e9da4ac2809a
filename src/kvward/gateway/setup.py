"""Open what a gateway needs, as its policy says: the issuer of scopes, the engine's own key."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kvward.gateway.policy import Policy
from kvward.keeping import Kept, from_environment
from kvward.scope import ScopeIssuer


@contextlib.contextmanager
def open_issuer(kept: Kept[Policy]) -> Iterator[ScopeIssuer]:
    """Open the issuer of a policy, over its keyring if it has one."""
    if kept.settings.keyring is None:
        yield ScopeIssuer.from_root_key(kept.load_root_key(), deployment=kept.settings.deployment)
        return
    with kept.keyring() as keyring:
        yield kept.issuer(keyring)


def load_credential(policy: Policy) -> str | None:
    """Return the engine's own key, if the policy names a variable that holds it. [secret]

    Raises:
        ConfigError: It does, and the variable is not set.
    """
    variable = policy.upstream_key_env
    return None if variable is None else from_environment(variable)
