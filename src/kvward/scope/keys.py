"""Secret keys as types: not printable, not comparable by ==, not picklable, not hashable."""

from __future__ import annotations

import hmac
from typing import ClassVar, Never, final

KEY_BYTES = 32


class SecretKey:
    """A 32-byte secret. Distinct purposes are distinct classes, so they cannot be swapped.

    Args:
        material: Exactly 32 bytes. [secret]
    Raises:
        ValueError: The material has another length.
    Security:
        `repr` and `str` show the class only; equality is an error (use `matches`, which is
        constant-time); pickling, copying and hashing are errors.
    """

    __slots__ = ("_material",)
    purpose: ClassVar[str] = "secret"

    def __init__(self, material: bytes) -> None:
        if len(material) != KEY_BYTES:
            raise ValueError(f"A {self.purpose} key has {KEY_BYTES} bytes.")
        self._material = bytes(material)

    def reveal(self) -> bytes:
        """Return the key bytes, for a cryptographic primitive only. [secret]"""
        return self._material

    def matches(self, other: SecretKey) -> bool:
        """Compare in constant time; keys of different purposes never match."""
        return type(self) is type(other) and hmac.compare_digest(self._material, other.reveal())

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def __eq__(self, other: object) -> bool:
        raise TypeError("Secret keys are compared with matches().")

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Never:
        raise TypeError("Secret keys cannot be pickled or copied.")

    def __copy__(self) -> Never:
        raise TypeError("Secret keys cannot be copied.")

    def __deepcopy__(self, memo: object) -> Never:
        raise TypeError("Secret keys cannot be copied.")


@final
class RootKey(SecretKey):
    """The deployment's root. Whoever holds it can derive every scope."""

    __slots__ = ()
    purpose = "root"


@final
class TenantKey(SecretKey):
    """Derives the scope ids and subjects of one tenant."""

    __slots__ = ()
    purpose = "tenant"


@final
class TokenKey(SecretKey):
    """Authenticates scope tokens of one deployment; cannot derive a scope id."""

    __slots__ = ()
    purpose = "token"


@final
class DeploymentKey(SecretKey):
    """Names tenants to the keyring and authenticates tokens; opens no stored state."""

    __slots__ = ()
    purpose = "deployment"


@final
class SealKey(SecretKey):
    """Seals the stored blocks of exactly one scope in one epoch. Random, never derived."""

    __slots__ = ()
    purpose = "seal"


@final
class NameKey(SecretKey):
    """Names the stored blocks of exactly one scope in one epoch."""

    __slots__ = ()
    purpose = "name"
