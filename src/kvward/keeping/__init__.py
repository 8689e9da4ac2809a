"""WHAT IS KEPT: settings of keyring and store, shared by gateway and adapters; opening them."""

from kvward.keeping.opening import Kept, from_environment
from kvward.keeping.promise import (
    Unkept,
    find_unkept,
    honour_contract,
    load_contract,
    prefix_digest,
    refuse_unkept,
)
from kvward.keeping.public import PUBLIC_OWNER, RegisteredPrefix, load_public_prefixes
from kvward.keeping.sections import (
    POLICY_VARIABLE,
    KeptSettings,
    KeyringPolicy,
    Pkcs11Policy,
    PublicPrefixPolicy,
    StorePolicy,
    check_kept,
    read_policy_file,
    select_kept,
)

__all__ = [
    "POLICY_VARIABLE",
    "PUBLIC_OWNER",
    "Kept",
    "KeptSettings",
    "KeyringPolicy",
    "Pkcs11Policy",
    "PublicPrefixPolicy",
    "RegisteredPrefix",
    "StorePolicy",
    "Unkept",
    "check_kept",
    "find_unkept",
    "from_environment",
    "honour_contract",
    "load_contract",
    "load_public_prefixes",
    "prefix_digest",
    "read_policy_file",
    "refuse_unkept",
    "select_kept",
]
