"""How the engine names, shares and predicts: prefix cache, adapters, media, speculation."""

from __future__ import annotations

from collections.abc import Iterator

from kvward.adapters.vllm.doctor.finding import Finding, Severity, not_understood
from kvward.adapters.vllm.doctor.setup import Setup

_HASHES = ("sha256", "sha256_cbor")
_WEAK_HASHES = ("xxhash", "xxhash_cbor")
_DRAFT_OPTIONS = ("speculative-config", "spec-method", "spec-model", "spec-tokens")


def find(setup: Setup) -> Iterator[Finding]:
    """Judge what is inside the engine."""
    yield from _prefix_hash(setup)
    yield from _prefix_cache(setup)
    yield from _adapters(setup)
    yield from _media(setup)
    yield from _speculation(setup)
    yield from _names(setup)


def _prefix_hash(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    algorithm = line.values.get("prefix-caching-hash-algo", ("sha256",))[-1]
    if algorithm in _WEAK_HASHES:
        seeded = setup.environment.text("PYTHONHASHSEED") is not None
        yield Finding(
            id="prefix-hash",
            severity=Severity.DEFEATS,
            setting=line.shown("prefix-caching-hash-algo"),
            why="Prompts can be made whose blocks collide, and then one tenant's state answers for "
            "another's" + (", offline because PYTHONHASHSEED fixes the seed." if seeded else "."),
            mend=f"Use {_HASHES[0]} (the default) or {_HASHES[1]}; vLLM 0.32.0 accepts these two, "
            f"{_WEAK_HASHES[0]} and {_WEAK_HASHES[1]}.",
        )
    elif algorithm not in _HASHES:
        yield not_understood(
            line.shown("prefix-caching-hash-algo"),
            "vLLM 0.32.0 has no such hash; it accepts sha256, sha256_cbor, xxhash and xxhash_cbor.",
        )


def _prefix_cache(setup: Setup) -> Iterator[Finding]:
    if setup.command_line.switches.get("enable-prefix-caching", True):
        return
    yield Finding(
        id="prefix-caching-off",
        severity=Severity.UNKNOWN,
        setting="--no-enable-prefix-caching",
        why="Nothing is shared in the engine's memory, but an audit has no reuse to compare with "
        "and ends inconclusive.",
        mend="Leave it away when you audit; otherwise nothing has to be mended.",
    )


def _adapters(setup: Setup) -> Iterator[Finding]:
    environment = setup.environment
    if not environment.is_on("VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
        return
    yield Finding(
        id="adapters-change",
        severity=setup.severity(bare=Severity.DEFEATS, guarded=Severity.WEAKENS),
        setting=environment.shown("VLLM_ALLOW_RUNTIME_LORA_UPDATING"),
        why="Blocks are named by an adapter's name and path, so state of the old adapter answers "
        "for one that is loaded in its place.",
        mend="Name adapters with --lora-modules at the start, and start anew to change them.",
    )
    for name in ("VLLM_LORA_RESOLVER_CACHE_DIR", "VLLM_LORA_RESOLVER_HF_REPO_LIST"):
        if environment.text(name):
            yield Finding(
                id="adapters-by-request",
                severity=Severity.WEAKENS,
                setting=environment.shown(name),
                why="A request loads an adapter by naming it as its model.",
                mend="Name adapters with --lora-modules at the start.",
            )


def _media(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    if line.is_on("language-model-only"):
        return
    yield Finding(
        id="media-shared",
        severity=Severity.UNKNOWN,
        setting="no --language-model-only",
        why="If the model takes images, sound or video: their caches have no salt, "
        + (
            "so times tell that somebody has sent the same item before."
            if setup.is_guarded
            else "and a caller may name an item (uuid) as another tenant did and be answered about "
            "the other's."
        ),
        mend="Add --language-model-only, which changes nothing for a model of text.",
    )


def _speculation(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    given = [name for name in _DRAFT_OPTIONS if name in line.values]
    if not given:
        return
    config = line.objects.get("speculative-config", {})
    methods = (line.value("spec-method"), config.get("method"))
    if "suffix" in methods:
        shared = config.get("suffix_decoding_max_cached_requests")
        if shared != 0 or isinstance(shared, bool):
            yield Finding(
                id="suffix-decoding",
                severity=Severity.DEFEATS,
                setting=f"--{given[0]} with the method suffix",
                why="Answers to all tenants are kept in one tree and predict each other, so the "
                "speed of an answer tells what others were answered.",
                mend="Leave it away, or set suffix_decoding_max_cached_requests to 0.",
            )
    yield Finding(
        id="speculation",
        severity=Severity.UNKNOWN,
        setting=f"--{given[0]}",
        why="Drafts have state of their own, and kvward was not tested with them.",
        mend="Leave it away, or audit the stack with it.",
    )


def _names(setup: Setup) -> Iterator[Finding]:
    line = setup.command_line
    if len(line.values.get("served-model-name", ())) > 1:
        yield Finding(
            id="several-model-names",
            severity=Severity.WEAKENS,
            setting=line.shown("served-model-name"),
            why="All names are one model with one cache, so a rule that parts tenants by model "
            "name does not part their state.",
            mend="Serve one name.",
        )
    if setup.environment.is_on("VLLM_SKIP_MODEL_NAME_VALIDATION"):
        yield Finding(
            id="any-model-name",
            severity=Severity.WEAKENS,
            setting=setup.environment.shown("VLLM_SKIP_MODEL_NAME_VALIDATION"),
            why="Every name is answered by the same model with one cache.",
            mend="Leave the variable away.",
        )
