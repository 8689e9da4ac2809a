"""HOW state is protected: bytes in, bytes out."""

from kvward.seal.batch import OpenJob, SealJob, open_many, seal_many
from kvward.seal.envelope import BlockSealer, Lifetime
from kvward.seal.header import (
    OVERHEAD_BYTES,
    Header,
    OpenRefusal,
    Suite,
    parse_unverified_header,
)

__all__ = [
    "OVERHEAD_BYTES",
    "BlockSealer",
    "Header",
    "Lifetime",
    "OpenJob",
    "OpenRefusal",
    "SealJob",
    "Suite",
    "open_many",
    "parse_unverified_header",
    "seal_many",
]
