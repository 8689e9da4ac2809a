"""Notes and checkpoints: what is signed opens, and nothing else does."""

from __future__ import annotations

import base64
import copy
import pickle

import nacl.signing
import pytest

from kvward.errors import CheckpointSignatureError, UsageError, VerificationError
from kvward.ledger.checkpoint import (
    Checkpoint,
    open_checkpoint,
    parse_checkpoint,
    parse_unverified_checkpoint,
    sign_checkpoint,
)
from kvward.ledger.note import NoteSigner, NoteVerifier, open_note, sign_note
from ledgers import ORIGIN, SIGNER

TEXT = "one line\n\nanother, after an empty one\n"
OTHER = NoteSigner("witness.example/w", bytes(32))
CHECKPOINT = Checkpoint(ORIGIN, 7, bytes(range(32)))
SIGNED = sign_checkpoint(CHECKPOINT, SIGNER)


def test_a_note_opens_with_the_key_of_one_of_its_signers() -> None:
    note = sign_note(TEXT, SIGNER, OTHER)
    assert open_note(note, [SIGNER.verifier]) == open_note(note, [OTHER.verifier]) == TEXT
    assert open_note(note, [SIGNER.verifier, OTHER.verifier]) == TEXT


def test_a_signature_that_stands_there_twice_is_one() -> None:
    note = sign_note(TEXT, SIGNER, SIGNER)
    assert open_note(note, [SIGNER.verifier]) == TEXT


def test_lines_of_unknown_keys_are_passed_over_whatever_they_hold() -> None:
    unknown = base64.b64encode(b"\x00\x01\x02\x03" + bytes(3309)).decode()
    same_name = base64.b64encode(b"\xff\xff\xff\xff" + bytes(64)).decode()
    lines = f"\u2014 somebody/else {unknown}\n\u2014 {ORIGIN} {same_name}\n".encode()
    assert open_note(sign_note(TEXT, SIGNER) + lines, [SIGNER.verifier]) == TEXT


def test_one_wrong_signature_of_a_known_key_refuses_the_note() -> None:
    wrong = base64.b64encode(OTHER.verifier.key_id + bytes(64)).decode()
    note = sign_note(TEXT, SIGNER) + f"\u2014 {OTHER.name} {wrong}\n".encode()
    assert open_note(note, [SIGNER.verifier]) == TEXT
    with pytest.raises(CheckpointSignatureError, match="witness"):
        open_note(note, [SIGNER.verifier, OTHER.verifier])


def test_nobody_asked_about_signed_it() -> None:
    for verifiers in ([], [OTHER.verifier]):
        with pytest.raises(CheckpointSignatureError, match="None of the given keys"):
            open_note(sign_note(TEXT, SIGNER), verifiers)


def test_every_changed_byte_is_noticed() -> None:
    for place in range(len(SIGNED)):
        for change in (1, 32, 128):
            changed = bytearray(SIGNED)
            changed[place] ^= change
            with pytest.raises(VerificationError):
                open_checkpoint(bytes(changed), [SIGNER.verifier])


def test_every_cut_is_noticed() -> None:
    for end in range(len(SIGNED)):
        with pytest.raises(VerificationError):
            open_checkpoint(SIGNED[:end], [SIGNER.verifier])
        with pytest.raises(VerificationError):
            open_checkpoint(SIGNED[end + 1 :], [SIGNER.verifier])


LINE = SIGNED.partition(b"\n\n")[2].decode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n\n",
        TEXT.encode(),
        TEXT.encode() + b"\n",
        TEXT.encode() + b"\nno signature\n",
        (TEXT + "\n" + LINE.replace("\u2014", "-")).encode(),
        (TEXT + "\n" + LINE.rstrip("\n")).encode(),
        (TEXT + "\n" + LINE.replace("\n", "=\n")).encode(),
        (TEXT + "\n" + LINE.replace("\n", " \n")).encode(),
        (TEXT + "\n" + LINE.replace("\n", "\r\n")).encode(),
        ("a\tb\n\n" + LINE).encode(),
        ("a\x00b\n\n" + LINE).encode(),
        b"\xff\n\n" + LINE.encode(),
        (TEXT + "\n" + LINE * 65).encode(),
        b"x" * (1 << 20) + b"\n\n" + LINE.encode(),
        "text\n\n\u2014 a+b AAAAAAA=\n".encode(),
        "text\n\n\u2014 ab AAAAAA==\n".encode(),
    ],
)
def test_what_is_no_note_does_not_open(data: bytes) -> None:
    with pytest.raises(CheckpointSignatureError):
        open_note(data, [SIGNER.verifier])


def test_another_library_verifies_our_notes_and_ours_verifies_its() -> None:
    seed = bytes(range(32))
    other = nacl.signing.SigningKey(seed)
    assert bytes(other.verify_key) == SIGNER.verifier.public_key
    text, _, line = SIGNED.rpartition(b"\n\n")
    signature = base64.b64decode(line.split(b" ")[2])
    other.verify_key.verify(text + b"\n", signature[4:])
    assert SIGNER.verifier.verify(TEXT.encode(), other.sign(TEXT.encode()).signature)


def test_the_example_of_the_verifier_keys_of_go() -> None:
    """The public key of the Go checksum database: its id is as published with it."""
    text = "sum.golang.org+033de0ae+Ac4zctda0e5eza+HJyk9SxEdh+s3Ux18htTTAD8OuAn8"
    verifier = NoteVerifier.from_text(text)
    assert (verifier.name, verifier.key_id.hex()) == ("sum.golang.org", "033de0ae")
    assert verifier.to_text() == text


def test_keys_come_back_from_their_text() -> None:
    assert NoteVerifier.from_text(SIGNER.verifier.to_text()) == SIGNER.verifier
    assert NoteSigner.from_text(SIGNER.reveal()).matches(SIGNER)
    assert not NoteSigner.generate(ORIGIN).matches(SIGNER)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a+b",
        "a+00000000+" + "A" * 44,
        SIGNER.verifier.to_text() + "\n",
        SIGNER.verifier.to_text().replace("one", "two"),
        SIGNER.verifier.to_text()[:-4],
        " " + SIGNER.verifier.to_text(),
        SIGNER.verifier.to_text().replace("+A", "+B"),
    ],
)
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        NoteVerifier.from_text(text)
    for wrong in (text, "PRIVATE+KEY+" + text):
        with pytest.raises(UsageError) as caught:
            NoteSigner.from_text(wrong)
        assert not text or text not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u2003b", "x" * 257])
def test_a_name_that_no_note_could_bear_is_refused(name: str) -> None:
    with pytest.raises(UsageError):
        NoteSigner(name, bytes(32))
    with pytest.raises(UsageError):
        Checkpoint(name, 0, bytes(32))


def test_a_signer_keeps_its_secret() -> None:
    secret = SIGNER.reveal().rpartition("+")[2]
    for shown in (repr(SIGNER), str(SIGNER), f"{SIGNER}", repr([SIGNER])):
        assert secret not in shown
        assert shown.strip("[]") == f"<NoteSigner {ORIGIN}>"
    for forbidden in (pickle.dumps, copy.copy, copy.deepcopy, hash, lambda s: s == SIGNER):
        with pytest.raises(TypeError):
            forbidden(SIGNER)
    assert not hasattr(SIGNER, "__dict__")
    for seed in (b"", bytes(31), bytes(33)):
        with pytest.raises(UsageError):
            NoteSigner(ORIGIN, seed)
    with pytest.raises(UsageError):
        NoteVerifier(name=ORIGIN, public_key=bytes(31))


@pytest.mark.parametrize("text", ["", "no newline", "a\tb\n", "a\x00\n"])
def test_a_text_that_no_note_can_have_is_not_signed(text: str) -> None:
    with pytest.raises(UsageError):
        sign_note(text, SIGNER)


def test_a_note_without_signer_is_not_made() -> None:
    with pytest.raises(UsageError):
        sign_note(TEXT)


def test_a_checkpoint_comes_back() -> None:
    assert open_checkpoint(SIGNED, [SIGNER.verifier]) == CHECKPOINT
    assert parse_unverified_checkpoint(SIGNED) == CHECKPOINT
    assert parse_checkpoint(CHECKPOINT.text()) == CHECKPOINT


ROOT = base64.b64encode(bytes(range(32))).decode()


@pytest.mark.parametrize(
    "text",
    [
        "",
        f"{ORIGIN}\n7\n{ROOT}",
        f"{ORIGIN}\n7\n{ROOT}\n\n",
        f"{ORIGIN}\n7\n{ROOT}\nextension\n",
        f"{ORIGIN}\n07\n{ROOT}\n",
        f"{ORIGIN}\n+7\n{ROOT}\n",
        f"{ORIGIN}\n-7\n{ROOT}\n",
        f"{ORIGIN}\n\u0667\n{ROOT}\n",
        f"{ORIGIN}\n9007199254740992\n{ROOT}\n",
        f"{ORIGIN}\n\n{ROOT}\n",
        f"{ORIGIN}\n7\n{ROOT[:-4]}\n",
        f"{ORIGIN}\n7\n{ROOT[:-2]}9=\n",
        f"{ORIGIN}\n7\n{bytes(range(32)).hex()}\n",
        f" {ORIGIN}\n7\n{ROOT}\n",
        f"a b\n7\n{ROOT}\n",
        f"\n7\n{ROOT}\n",
    ],
)
def test_a_checkpoint_has_one_spelling(text: str) -> None:
    with pytest.raises(VerificationError):
        parse_checkpoint(text)


def test_a_log_is_not_believed_by_the_key_of_another_one() -> None:
    with pytest.raises(UsageError):
        sign_checkpoint(CHECKPOINT, OTHER)
    note = sign_note(CHECKPOINT.text(), OTHER)
    with pytest.raises(CheckpointSignatureError, match="another one"):
        open_checkpoint(note, [OTHER.verifier, SIGNER.verifier])


def test_values_that_no_checkpoint_could_say_are_refused() -> None:
    for size, root in ((-1, bytes(32)), (2**53, bytes(32)), (0, bytes(31))):
        with pytest.raises(UsageError):
            Checkpoint(ORIGIN, size, root)
