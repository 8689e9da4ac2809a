"""WHAT IS KEPT: settings of keyring and store, shared by gateway and adapters; opening them."""

from kvward.keeping.opening import Kept, from_environment
from kvward.keeping.sections import (
    KeptSettings,
    KeyringPolicy,
    Pkcs11Policy,
    StorePolicy,
    check_kept,
    read_policy_file,
    select_kept,
)

__all__ = [
    "Kept",
    "KeptSettings",
    "KeyringPolicy",
    "Pkcs11Policy",
    "StorePolicy",
    "check_kept",
    "from_environment",
    "read_policy_file",
    "select_kept",
]
