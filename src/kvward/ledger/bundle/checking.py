"""Verification of a whole bundle, offline: every file, signature, proof and verdict.

Source: docs/spec/bundle-v1.md, section 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvward.errors import BundleError
from kvward.ledger.bundle.audit_part import Recompute, check_audit
from kvward.ledger.bundle.log_part import LogPart, check_log
from kvward.ledger.bundle.manifest import ALWAYS, FIXED_NAMES, Role, check_manifest, role_of
from kvward.ledger.bundle.result import Verification
from kvward.ledger.bundle.signatures import Keys, parse_unverified_keys
from kvward.ledger.document import parse_unverified_object, sha256_hex
from kvward.ledger.entry import ContractPublished, PlanPublished, VerdictReached
from kvward.ledger.note import NoteVerifier

CONTRACT_TYPE = "application/vnd.kvward.contract+json"
NO_KEY = (
    "No key was given, so nobody's signature was checked: the bundle agrees with itself, and "
    "whoever wrote it could have made up all of it."
)


def check_bundle(
    files: Mapping[str, bytes],
    *,
    trusted: Sequence[NoteVerifier],
    known: bytes | None,
    allow_partial: bool,
    recompute: Recompute,
) -> Verification:
    """Verify a bundle and return what came of it; bad news is in the result.

    Args:
        files: All files by name. [untrusted]
        trusted: Keys of whom to believe; with none, agreement of the bundle with itself is all
            that can hold.
        known: A signed checkpoint of the same log from before; None where there is none.
        allow_partial: Whether some of the log's entries may be missing.
        recompute: Judges a history.
    """
    result = Verification()
    with result.step("bundle"):
        # (1) The files are those that the manifest lists.
        check_manifest(files)
        missing = sorted(FIXED_NAMES[role] for role in ALWAYS if FIXED_NAMES[role] not in files)
        if missing:
            raise BundleError(f"The bundle lacks {' and '.join(missing)}.")
        audits = sorted({role_of(name)[1] for name in files if name.startswith("audits/")})
        if not audits:
            raise BundleError("The bundle holds no audit.")
        result.holds("bundle", f"{len(files)} files are what the manifest lists.")
        # (2) Signatures are of keys that it lists, and of one that is trusted.
        listed = parse_unverified_keys(files[FIXED_NAMES[Role.KEYS]])
        keys = Keys(listed=listed, trusted=tuple(trusted))
        if not trusted:
            result.not_shown("keys", NO_KEY)
        # (3) The log.
        log = check_log(files, keys, result, known=known, allow_partial=allow_partial)
        # (4) The contract, where there is one.
        contract_digest = _check_contract(files, log, keys, result)
        # (5) Every audit; one that fails does not hide what the others say.
        for audit_id in audits:
            with result.step(f"audit {audit_id}"):
                check_audit(
                    files,
                    audit_id,
                    log,
                    keys,
                    result,
                    contract_digest=contract_digest,
                    recompute=recompute,
                )
        # (6) What the log has besides.
        _list_others(log, result)
    return result


def _check_contract(
    files: Mapping[str, bytes], log: LogPart, keys: Keys, result: Verification
) -> str | None:
    data = files.get(FIXED_NAMES[Role.CONTRACT])
    envelope = files.get(FIXED_NAMES[Role.CONTRACT_ENVELOPE])
    if data is None:
        if envelope is not None:
            raise BundleError("There is a signature of a contract, and no contract.")
        return None
    parse_unverified_object(data, what="the contract")
    digest = sha256_hex(data)
    logged = any(
        isinstance(entry, PlanPublished | ContractPublished) and entry.contract_digest == digest
        for _, entry in log.entries
    )
    if not logged:
        raise BundleError("The log knows nothing of the contract in the bundle.")
    if envelope is not None:
        if keys.open_envelope(envelope, payload_type=CONTRACT_TYPE) != data:
            raise BundleError("The contract is not the one that was signed.")
        result.holds("contract", "The contract is signed, and the log names it.")
    else:
        result.holds("contract", "The log names the contract.")
    return digest


def _list_others(log: LogPart, result: Verification) -> None:
    here = {row.plan_digest for row in result.audits}
    planned = dict.fromkeys(
        entry.plan_digest for _, entry in log.entries if isinstance(entry, PlanPublished)
    )
    answered = {entry.plan_digest for _, entry in log.entries if isinstance(entry, VerdictReached)}
    result.unanswered = [digest for digest in planned if digest not in answered]
    result.elsewhere = [digest for digest in planned if digest in answered - here]
