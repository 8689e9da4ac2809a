"""Registered public prefixes: the only state that is shared wider than a tenant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvward.errors import ConfigError
from kvward.keeping.sections import KeptSettings, PublicPrefixPolicy
from kvward.scope import Scope, ScopeIssuer
from kvward.scope.owner import ScopeOwner, verify_owner
from kvward.scope.spans import digest_tokens
from kvward.terms import SharingLevel

PUBLIC_OWNER = "kvward/public"
"""In whose name public state is kept. No tenant can have this name."""

_MAX_TOKEN_ID = 2**32 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredPrefix:
    """A prefix with its tokens."""

    name: str
    token_ids: tuple[int, ...]

    def scope(self, issuer: ScopeIssuer) -> Scope:
        """Return the prefix's scope in the epoch that new state belongs to.

        Other tokens under the same name are another scope.

        Raises:
            KeyringUnavailableError: The keyring does not answer.
        """
        subject = self.name.encode() + b"\0" + digest_tokens(self.token_ids)
        return issuer.current(tenant=PUBLIC_OWNER, level=SharingLevel.PUBLIC, subject=subject)

    def owner(self, issuer: ScopeIssuer, *, token: str) -> ScopeOwner:
        """Return under whom the prefix is stored."""
        tag = issuer.owner_tag(self.scope(issuer), token=token)
        return verify_owner(tag, token=token, token_key=issuer.token_key)


def load_public_prefixes(settings: KeptSettings, folder: Path) -> tuple[RegisteredPrefix, ...]:
    """Read the tokens of all registered prefixes.

    Args:
        folder: What relative paths are relative to.
    Raises:
        ConfigError: A file cannot be read, or is not a list of token ids.
    """
    return tuple(
        RegisteredPrefix(name=prefix.name, token_ids=_read_token_ids(prefix, folder))
        for prefix in settings.public_prefixes
    )


def _read_token_ids(prefix: PublicPrefixPolicy, folder: Path) -> tuple[int, ...]:
    path = folder / prefix.token_ids_file
    try:
        token_ids = msgspec.json.decode(path.read_bytes(), type=list[int])
    except OSError as exc:
        raise ConfigError(
            f"The tokens of the public prefix {prefix.name!r} cannot be read from {path}: "
            f"{exc.strerror}.",
            hint="Write them with: kvward gateway prefix",
        ) from exc
    except msgspec.DecodeError as exc:
        raise ConfigError(f"{path} is not a JSON list of token ids.") from exc
    if not token_ids or not all(0 <= token <= _MAX_TOKEN_ID for token in token_ids):
        raise ConfigError(f"{path} holds no tokens, or numbers that are not token ids.")
    return tuple(token_ids)
