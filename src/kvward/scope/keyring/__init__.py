"""The durable keyring: which keys there are, who wraps whom, and how they end."""

from kvward.scope.keyring.cache import CachedEpochs, CachedKeys, CachedTenants
from kvward.scope.keyring.database import Database
from kvward.scope.keyring.keyring import KeyLifetimes, Keyring
from kvward.scope.keyring.keys import KeyClient, ScopeKeys
from kvward.scope.keyring.lifecycle import (
    PendingPurge,
    TenantStatus,
    collect,
    erase_scope,
    erase_tenant,
    finish_purge,
    iter_status,
    pending_purges,
    reroot,
    rotate,
)
from kvward.scope.keyring.receipt import (
    ErasureReceipt,
    derive_receipt_key,
    sign_receipt,
    verify_receipt,
)
from kvward.scope.keyring.root import LocalRoot, Root, load_root_key_from_environment
from kvward.scope.keyring.sqlite import SqliteDatabase

__all__ = [
    "CachedEpochs",
    "CachedKeys",
    "CachedTenants",
    "Database",
    "ErasureReceipt",
    "KeyClient",
    "KeyLifetimes",
    "Keyring",
    "LocalRoot",
    "PendingPurge",
    "Root",
    "ScopeKeys",
    "SqliteDatabase",
    "TenantStatus",
    "collect",
    "derive_receipt_key",
    "erase_scope",
    "erase_tenant",
    "finish_purge",
    "iter_status",
    "load_root_key_from_environment",
    "pending_purges",
    "reroot",
    "rotate",
    "sign_receipt",
    "verify_receipt",
]
