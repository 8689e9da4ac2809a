"""What a keyring hands out for a scope, and the ports through which it does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvward.scope.keys import NameKey, SealKey
from kvward.scope.owner import ScopeOwner


@dataclass(frozen=True, slots=True, kw_only=True)
class ScopeKeys:
    """Everything needed to name, seal and open the stored blocks of one scope in one epoch.

    Attributes:
        epoch: Of these keys.
        tenant_bucket: Pseudonym under which stores group the tenant's entries, 16 bytes.
        scope_bucket: Pseudonym under which stores group the scope's entries, 16 bytes.
        seal_key: Random. [secret]
        name_key: Derived from the tenant's key. [secret]
    """

    epoch: int
    tenant_bucket: bytes
    scope_bucket: bytes
    seal_key: SealKey
    name_key: NameKey


class KeyClient(Protocol):
    """Gives adapters the keys of scopes. May be used from several threads."""

    def reading_keys(self, owner: ScopeOwner) -> Sequence[ScopeKeys]:
        """Return the keys of every epoch that may still be read, newest first.

        Empty when nothing was ever stored, when it was erased, or when the epoch was retired.

        Raises:
            KeyringUnavailableError: The keyring does not answer.
        """

    def writing_keys(self, owner: ScopeOwner) -> ScopeKeys:
        """Return the keys to write under, made at the first call for a scope.

        Two callers at once, in one process or in several, get the same.

        Raises:
            EpochRetiredError: The token's epoch is not the one to write under: the scope was
                erased or the keys were rotated after the token was issued.
            KeyUnavailableError: The tenant was erased, or a row does not unwrap.
            KeyringUnavailableError: The keyring does not answer.
        """
