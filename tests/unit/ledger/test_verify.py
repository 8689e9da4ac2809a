"""Verification, repair and proofs: what was changed is found, what is whole is let be."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from attacks.forgery_log.world import lay_out

from kvward.errors import (
    CheckpointSignatureError,
    ConsistencyError,
    ForkError,
    InclusionError,
    LedgerBusyError,
    UsageError,
    VerificationError,
)
from kvward.ledger.append import LogAppender, begin_log
from kvward.ledger.checkpoint import Checkpoint, sign_checkpoint
from kvward.ledger.entry import PlanPublished, VerdictReached, encode_entry
from kvward.ledger.fsck import check_folder
from kvward.ledger.merkle import leaf_hash, tree_root
from kvward.ledger.names import SeedSource
from kvward.ledger.note import NoteSigner
from kvward.ledger.proof import (
    ConsistencyProof,
    InclusionProof,
    encode_proof,
    parse_unverified_proof,
    prove_consistency,
    prove_inclusion,
    verify_consistency_proof,
    verify_inclusion_proof,
)
from kvward.ledger.tiles import LogFolder, iter_tiles, pack_bundle
from kvward.ledger.verify import verify_log
from kvward.terms import Outcome
from ledgers import ORIGIN, SIGNER, counted, digest_of, make_log

VERIFIERS = [SIGNER.verifier]
GROUPS = (1, 254, 1, 300, 44, 200)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_log(tmp_path / "log", *GROUPS)
    return tmp_path / "log"


def test_a_whole_log_verifies_against_every_checkpoint_it_ever_had(tmp_path: Path) -> None:
    checkpoints = make_log(tmp_path, *GROUPS)
    for known in (None, *checkpoints):
        found = verify_log(tmp_path, VERIFIERS, known)
        assert found.checkpoint == checkpoints[-1]
        assert found.known == known
        assert found.num_entries == {"count": sum(GROUPS)}
        assert found.num_dropped == 0


def test_the_root_is_what_anyone_computes_from_the_entries(folder: Path) -> None:
    found = verify_log(folder, VERIFIERS, None)
    entries = list(LogFolder(folder).iter_entries(found.checkpoint.size))
    assert found.checkpoint.root == tree_root([leaf_hash(entry) for entry in entries])


def test_a_log_without_entries_verifies(tmp_path: Path) -> None:
    begin_log(tmp_path, SIGNER)
    assert verify_log(tmp_path, VERIFIERS, None).checkpoint.size == 0


def test_a_log_that_was_rolled_back_or_written_anew_is_a_fork(tmp_path: Path) -> None:
    _, early, late = make_log(tmp_path / "log", 100, 200)
    _, _, other = make_log(tmp_path / "other", 101, 198)
    with pytest.raises(ForkError, match="rolled back"):
        verify_log(tmp_path / "other", VERIFIERS, late)
    for size in (0, 1, 100, 255, 256, 300):
        with pytest.raises(ForkError, match="anew"):
            verify_log(tmp_path / "log", VERIFIERS, Checkpoint(ORIGIN, size, bytes(32)))
    with pytest.raises(VerificationError, match="known checkpoint is of"):
        verify_log(tmp_path / "log", VERIFIERS, Checkpoint("somebody/else", 1, early.root))
    assert other.size == 299


def test_plans_without_a_verdict_and_verdicts_without_a_plan_are_told(tmp_path: Path) -> None:
    def plan(number: int) -> PlanPublished:
        return PlanPublished(
            at_unix_ms=number,
            plan_digest=digest_of(number),
            contract_digest=None,
            seed_source=SeedSource.DRAWN,
            seed_digest=None,
        )

    def verdict(number: int) -> VerdictReached:
        return VerdictReached(
            at_unix_ms=number,
            clause=None,
            channel=None,
            scope=None,
            tier=None,
            outcome=Outcome.NOT_OBSERVED,
            bound_ppb=300_000,
            plan_digest=digest_of(number),
            history_digest=digest_of(0),
            report_digest=digest_of(0),
        )

    begin_log(tmp_path, SIGNER)
    appender = LogAppender(tmp_path, SIGNER, known=None)
    entries = [plan(1), verdict(1), plan(2), verdict(3), plan(3), verdict(1)]
    appender.append([encode_entry(entry) for entry in entries])
    appender.close()
    found = verify_log(tmp_path, VERIFIERS, None)
    assert found.plans_without_verdict == (digest_of(2), digest_of(3))
    assert found.verdicts_without_plan == (digest_of(3),)
    assert found.num_entries == {"plan": 3, "verdict": 3}


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")


def needed_files(folder: Path) -> list[Path]:
    size = sum(GROUPS)
    tiles = [*iter_tiles(None, size), *iter_tiles(0, size), *iter_tiles(1, size)]
    return [folder / "checkpoint", *(folder / tile.path for tile in tiles)]


def test_every_changed_file_is_noticed(folder: Path) -> None:
    needed = 0
    for path in needed_files(folder):
        data = path.read_bytes()
        for place in {0, len(data) // 2, len(data) - 1}:
            path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            with pytest.raises(VerificationError):
                verify_log(folder, VERIFIERS, None)
            needed += 1
        path.write_bytes(data[:-1])
        with pytest.raises(VerificationError):
            verify_log(folder, VERIFIERS, None)
        path.unlink()
        with pytest.raises(VerificationError):
            verify_log(folder, VERIFIERS, None)
        path.write_bytes(data)
    assert needed == 3 * len(needed_files(folder)) > 20
    verify_log(folder, VERIFIERS, None)


def test_another_history_with_all_its_tiles_does_not_lead_to_the_signed_root(folder: Path) -> None:
    log, size = LogFolder(folder), sum(GROUPS)
    entries = list(log.iter_entries(size))
    entries[7], entries[8] = entries[8], entries[7]
    for name, data in lay_out(entries, log.read_checkpoint()).items():
        (folder / name).write_bytes(data)
    with pytest.raises(VerificationError, match="root that was signed"):
        verify_log(folder, VERIFIERS, None)
    report = check_folder(folder, VERIFIERS, repair=True)
    assert report.lost == ("The entries do not lead to the root that was signed.",)


def test_another_key_is_not_believed(folder: Path) -> None:
    other = NoteSigner(ORIGIN, bytes(32))
    with pytest.raises(CheckpointSignatureError):
        verify_log(folder, [other.verifier], None)


def test_an_entry_that_is_none_does_not_verify_though_it_was_signed(tmp_path: Path) -> None:
    begin_log(tmp_path, SIGNER)
    appender = LogAppender(tmp_path, SIGNER, known=None)
    appender.append([encode_entry(counted(0)), b'{"prompt":"Dear bank"}'])
    appender.close()
    with pytest.raises(VerificationError, match="Entry 1") as caught:
        verify_log(tmp_path, VERIFIERS, None)
    assert "bank" not in str(caught.value)


def break_tiles(folder: Path) -> None:
    (folder / "tile/0/000").write_bytes(bytes(8192))
    (folder / "tile/1/000.p/3").unlink()
    (folder / "tile/0/001").write_bytes(b"short")


def test_tiles_are_made_anew_from_entries(folder: Path) -> None:
    before = {path: path.read_bytes() for path in all_files(folder)}
    assert check_folder(folder, VERIFIERS, repair=False).is_clean
    break_tiles(folder)
    (folder / "tile/entries/004").write_bytes(b"left over")
    report = check_folder(folder, VERIFIERS, repair=False)
    assert set(report.damaged) == {"tile/0/000", "tile/0/001", "tile/1/000.p/3"}
    assert report.leftovers == ("tile/entries/004",)
    assert not report.lost
    assert not report.is_clean
    with pytest.raises(VerificationError):
        verify_log(folder, VERIFIERS, None)
    mended = check_folder(folder, None, repair=True)
    assert mended.is_clean
    assert mended.repaired
    assert {path: path.read_bytes() for path in all_files(folder)} == before
    assert check_folder(folder, VERIFIERS, repair=True) == check_folder(
        folder, VERIFIERS, repair=False
    )


def change_an_entry(folder: Path) -> None:
    log = LogFolder(folder)
    size = 256
    entries = list(log.iter_entries(size))
    entries[7] = encode_entry(counted(999))
    (folder / "tile/entries/000").write_bytes(pack_bundle(entries))


def write_no_entry(folder: Path) -> None:
    entries = list(LogFolder(folder).iter_entries(256))
    entries[7] = b"{}"
    (folder / "tile/entries/000").write_bytes(pack_bundle(entries))


@pytest.mark.parametrize(
    "lose",
    [change_an_entry, write_no_entry, lambda folder: (folder / "tile/entries/001").unlink()],
)
def test_entries_cannot_be_made_anew_and_then_nothing_is(
    folder: Path, lose: Callable[[Path], None]
) -> None:
    lose(folder)
    break_tiles(folder)
    before = {path: path.read_bytes() for path in all_files(folder)}
    report = check_folder(folder, VERIFIERS, repair=True)
    assert report.lost
    assert not report.repaired
    assert not report.is_clean
    assert {path: path.read_bytes() for path in all_files(folder)} == before


def test_a_log_is_not_repaired_under_its_writer(folder: Path) -> None:
    appender = LogAppender(folder, SIGNER, known=None)
    with pytest.raises(LedgerBusyError):
        check_folder(folder, VERIFIERS, repair=True)
    assert check_folder(folder, VERIFIERS, repair=False).is_clean
    appender.close()


def test_proofs_of_inclusion_come_back_and_verify(folder: Path) -> None:
    size = sum(GROUPS)
    for index in (0, 1, 255, 256, 512, size - 1):
        proof = parse_unverified_proof(
            encode_proof(prove_inclusion(folder, index, verifiers=VERIFIERS))
        )
        assert isinstance(proof, InclusionProof)
        entry, checkpoint = verify_inclusion_proof(proof, VERIFIERS)
        assert (entry, checkpoint.size) == (counted(index), size)
    for index in (-1, size):
        with pytest.raises(UsageError):
            prove_inclusion(folder, index, verifiers=None)


def changed(proof: InclusionProof | ConsistencyProof, /, **values: object) -> bytes:
    return json.dumps(json.loads(encode_proof(proof)) | values).encode()


def test_no_changed_proof_of_inclusion_verifies(folder: Path) -> None:
    proof = prove_inclusion(folder, 300, verifiers=None)
    other = prove_inclusion(folder, 301, verifiers=None)
    unsigned = Checkpoint(ORIGIN, sum(GROUPS), bytes(32))
    forged = sign_checkpoint(unsigned, NoteSigner(ORIGIN, bytes(32))).decode()
    for values, error in (
        ({"index": 301}, InclusionError),
        ({"index": 2**53 - 1}, InclusionError),
        ({"entry": other.entry}, InclusionError),
        ({"proof": other.proof}, InclusionError),
        ({"proof": proof.proof[1:]}, InclusionError),
        ({"proof": []}, InclusionError),
        ({"checkpoint": forged}, CheckpointSignatureError),
        ({"checkpoint": "x"}, CheckpointSignatureError),
    ):
        wrong = parse_unverified_proof(changed(proof, **values))
        assert isinstance(wrong, InclusionProof)
        with pytest.raises(error):
            verify_inclusion_proof(wrong, VERIFIERS)


def test_proofs_of_consistency_verify_and_changed_ones_do_not(tmp_path: Path) -> None:
    checkpoints = make_log(tmp_path, *GROUPS)
    for known in checkpoints:
        proof = prove_consistency(tmp_path, known.size, verifiers=VERIFIERS)
        assert parse_unverified_proof(encode_proof(proof)) == proof
        assert verify_consistency_proof(proof, VERIFIERS, known) == checkpoints[-1]
        assert verify_consistency_proof(proof, VERIFIERS, None) == checkpoints[-1]
    proof = prove_consistency(tmp_path, 256, verifiers=None)
    for values, error in (
        ({"old_size": 255}, ConsistencyError),
        ({"old_root": digest_of(1)}, ConsistencyError),
        ({"proof": proof.proof[:-1]}, ConsistencyError),
        ({"proof": [*proof.proof, digest_of(1)]}, ConsistencyError),
    ):
        wrong = parse_unverified_proof(changed(proof, **values))
        assert isinstance(wrong, ConsistencyProof)
        with pytest.raises(error):
            verify_consistency_proof(wrong, VERIFIERS, None)
    with pytest.raises(ForkError):
        verify_consistency_proof(proof, VERIFIERS, checkpoints[1])
    for size in (-1, sum(GROUPS) + 1):
        with pytest.raises(UsageError):
            prove_consistency(tmp_path, size, verifiers=None)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"\xff", b'{"format":"other"}', b"[" * 100_000],
)
def test_what_is_no_proof_is_refused(data: bytes) -> None:
    with pytest.raises(VerificationError):
        parse_unverified_proof(data)


def test_a_proof_with_other_fields_or_spellings_is_refused(folder: Path) -> None:
    proof = prove_inclusion(folder, 3, verifiers=None)
    for values in (
        {"more": 1},
        {"index": -1},
        {"index": "3"},
        {"proof": ["00"]},
        {"proof": [digest_of(1).upper()]},
        {"proof": [digest_of(1)] * 129},
    ):
        with pytest.raises(VerificationError):
            parse_unverified_proof(changed(proof, **values))


def test_no_text_of_a_proof_that_is_not_unicode_gets_through(folder: Path) -> None:
    data = encode_proof(prove_inclusion(folder, 3, verifiers=None))
    for wrong in (data.replace(b"kvward", b"\\ud800"), data.replace(b"store", b"\\ud800")):
        with pytest.raises(VerificationError):
            verify_inclusion_proof(parse_unverified_proof(wrong), VERIFIERS)  # type: ignore[arg-type]


def test_nothing_is_proved_from_damaged_tiles(folder: Path) -> None:
    break_tiles(folder)
    with pytest.raises(VerificationError):
        prove_inclusion(folder, 600, verifiers=None)
    with pytest.raises(VerificationError):
        prove_consistency(folder, 600, verifiers=None)


def test_a_copy_verifies_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)
    (copy / "lock").unlink()
    found = verify_log(copy, VERIFIERS, None)
    assert hashlib.sha256(found.checkpoint.root).digest()
