"""Other people's sealing of KV blocks, fetched from the package index, to measure beside ours.

Their packages pull in much that sealing does not need (LMCache: torch). Only the modules that seal
are loaded, unchanged, with empty stand-ins for what they import and do not use here.
"""

from __future__ import annotations

import subprocess
import sys
import types
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import util
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "build" / "peers"
_LMCACHE = "lmcache==0.5.6"
_PQC = "pqc-kv-cache-encryption==0.1.0"


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A way to seal and to open one block of a fixed size."""

    name: str
    seal: Callable[[], object]
    open: Callable[[], object]


def fetch(requirement: str) -> Path:
    """Download a wheel once and unpack it; returns the folder that holds its packages."""
    folder = FOLDER / requirement.replace("==", "-")
    if not (folder / ".done").exists():
        wheels = folder / "wheels"
        wheels.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"),
                *("--dest", wheels, requirement),
            ],
            check=True,
        )
        for wheel in wheels.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
        (folder / ".done").touch()
    return folder


def lmcache_peer(size: int) -> Peer:
    """LMCache's `aesgcm` serde with 256-bit keys, over buffers like its own (ctypes-backed)."""
    module = _load_lmcache_serde()

    class Keys:
        def get_key(self, cache_salt: str) -> bytes:  # noqa: ARG002 - theirs
            return b"k" * 32

    class Memory:
        def __init__(self, num_bytes: int) -> None:
            self.byte_array = memoryview(bytearray(num_bytes))

    class Key:
        cache_salt = "salt"

    plain, frame, out = Memory(size), Memory(size + 29), Memory(size)
    writer, reader = module.AesGcmSerializer(Keys()), module.AesGcmDeserializer(Keys())
    writer.serialize(plain, frame, Key())
    return Peer(
        name=_LMCACHE,
        seal=lambda: writer.serialize(plain, frame, Key()),
        open=lambda: reader.deserialize(frame, out, Key()),
    )


def pqc_peer(size: int) -> Peer:
    """pqc-kv-cache-encryption, whose entries carry nonce and ciphertext as hexadecimal text."""
    folder = str(fetch(_PQC))
    if folder not in sys.path:
        sys.path.append(folder)
    # Where it gets its session keys from is not what is measured.
    with _stand_ins(
        {
            "quantumshield": [],
            "quantumshield.core": [],
            "quantumshield.core.algorithms": ["KEMAlgorithm"],
            "quantumshield.core.keys": ["generate_kem_keypair"],
        }
    ):
        from pqc_kv_cache.encryptor import CacheDecryptor, CacheEncryptor
        from pqc_kv_cache.entry import EntryMetadata, KVCacheEntry
        from pqc_kv_cache.session import TenantIdentity, TenantSession

    session = TenantSession(
        session_id="s",
        tenant=TenantIdentity(tenant_id="t"),
        symmetric_key=b"k" * 32,
        algorithm="ML-KEM-768",
        created_at="2026-01-01T00:00:00+00:00",
        expires_at="2099-01-01T00:00:00+00:00",
    )
    entry = KVCacheEntry(
        metadata=EntryMetadata(tenant_id="t", session_id="s", layer_idx=0, position=0),
        key_tensor_bytes=bytes(size // 2),
        value_tensor_bytes=bytes(size - size // 2),
    )
    encryptor = CacheEncryptor(session)
    sealed = encryptor.encrypt_entry(entry)
    return Peer(
        name=_PQC,
        seal=lambda: encryptor.encrypt_entry(entry),
        # It refuses to open an entry twice, so each opening is a new reader's.
        open=lambda: CacheDecryptor(session).decrypt_entry(sealed),
    )


def _load_lmcache_serde() -> types.ModuleType:
    path = fetch(_LMCACHE) / "lmcache" / "v1" / "distributed" / "serde" / "aesgcm.py"
    names = {
        "torch": [],
        "lmcache.logging": ["init_logger"],
        "lmcache.v1.distributed.api": ["MemoryLayoutDesc", "ObjectKey"],
        "lmcache.v1.distributed.serde.async_processor": ["AsyncSerdeProcessor"],
        "lmcache.v1.distributed.serde.base": ["Deserializer", "SerdeProcessor", "Serializer"],
        "lmcache.v1.distributed.serde.factory": ["register_serde_factory"],
        "lmcache.v1.distributed.serde.key_provider": ["HkdfKeyProvider", "KeyProvider"],
        "lmcache.v1.memory_management": ["MemoryObj"],
    }
    with _stand_ins(names):
        spec = util.spec_from_file_location("lmcache_aesgcm", path)
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module


@contextmanager
def _stand_ins(names: Mapping[str, Sequence[str]]) -> Iterator[None]:
    """Put empty modules in place of those that the measured code imports and does not use."""
    before = {name: sys.modules.get(name) for name in names}
    try:
        for name, attributes in names.items():
            stand_in = types.ModuleType(name)
            stand_in.__path__ = []
            for attribute in attributes:
                stand_in.__dict__[attribute] = _nothing if attribute[0].islower() else _Anything
            sys.modules[name] = stand_in
        yield
    finally:
        for name, old in before.items():
            if old is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = old


def _nothing(*_: object) -> None:
    """Stand in for a function."""


class _Anything:
    """Stand in for a class, or an enumeration of which one member is a default."""

    ML_KEM_768 = "ML-KEM-768"
