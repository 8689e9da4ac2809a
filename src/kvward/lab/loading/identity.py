"""What exactly a loaded checkpoint is, and the manifest of the engine that runs it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from kvward import __version__
from kvward.blocks.config import digest_config
from kvward.blocks.manifest import ModelManifest, ParallelShape, WeightsIdentity, WeightsKind
from kvward.lab.interface import LlamaConfig

# The engine computes and keeps everything in float32, however the weights are stored.
_DTYPE = "float32"
_ATTENTION = "numpy, pages of layer,plane,token,head,channel, keys rotated by halves"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIdentity:
    """Digests over what a checkpoint was read from; 32 bytes each.

    Attributes:
        weights: Over every byte of the files.
        tokenizer: Over the tokenizer and its special tokens.
        chat_template: None where there is none.
        quantisation: In which form the weights are stored, as text; None when they are floats.
    """

    weights: bytes
    tokenizer: bytes
    chat_template: bytes | None
    quantisation: str | None


def describe_engine(
    identity: CheckpointIdentity, config: LlamaConfig, *, block_tokens: int
) -> ModelManifest:
    """Return the manifest of the lab engine with a checkpoint.

    Args:
        config: As the engine uses it; what config.json says besides changes nothing.
    """
    return ModelManifest(
        weights=WeightsIdentity(kind=WeightsKind.FULL_HASH, digest=identity.weights),
        configuration=digest_config(asdict(config)),
        tokenizer=identity.tokenizer,
        chat_template=identity.chat_template,
        dtype=_DTYPE,
        kv_dtype=_DTYPE,
        kv_scales=None,
        quantisation=identity.quantisation,
        attention=_ATTENTION,
        block_tokens=block_tokens,
        parallel=ParallelShape(tensor=1, pipeline=1, context=1, expert=1),
        engine="kvward-lab",
        engine_version=__version__,
        adapter=None,
    )
