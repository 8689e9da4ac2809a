"""WHO may share: scopes, the keys they derive from, and the token that names one to an engine."""

from kvward.scope.issue import ScopeIssuer, TenantKeys
from kvward.scope.keyfile import create_root_key, load_root_key
from kvward.scope.keys import (
    DeploymentKey,
    NameKey,
    RootKey,
    SealKey,
    SecretKey,
    TenantKey,
    TokenKey,
)
from kvward.scope.model import Scope
from kvward.scope.token import VerifiedToken, verify_token

__all__ = [
    "DeploymentKey",
    "NameKey",
    "RootKey",
    "Scope",
    "ScopeIssuer",
    "SealKey",
    "SecretKey",
    "TenantKey",
    "TenantKeys",
    "TokenKey",
    "VerifiedToken",
    "create_root_key",
    "load_root_key",
    "verify_token",
]
