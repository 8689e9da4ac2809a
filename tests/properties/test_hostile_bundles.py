"""Whatever stands in a bundle's files: the verification says that it fails, and never breaks."""

from __future__ import annotations

import json
from functools import cache

from attacks.forgery_bundle.world import SIGNER, World
from hypothesis import given, settings
from hypothesis import strategies as st

from kvward.cli.recomputing import recompute_audit
from kvward.cli.verify import iter_lines, to_value
from kvward.errors import BundleError
from kvward.ledger.bundle.archive import parse_unverified_archive
from kvward.ledger.bundle.checking import check_bundle
from kvward.ledger.bundle.manifest import MANIFEST_NAME
from kvward.ledger.bundle.writing import make_archive, with_manifest
from kvward.terms import ExitCode

HOSTILE = st.sampled_from(
    [
        10**30, -(10**30), -1, 1.5, 2**53, 2**64, True, None, "", "x" * 5_000, "\ud800", "\x1b[31m",
        [], {}, [[[[1]]]], "NOT_OBSERVED", "S9", [None], {"a": 1},
    ]
)  # fmt: skip


@cache
def world() -> World:
    return World()


def exit_code(files: dict[str, bytes]) -> ExitCode:
    result = check_bundle(
        files,
        trusted=[SIGNER.verifier],
        known=world().known,
        allow_partial=False,
        recompute=recompute_audit,
    )
    # What is printed can be printed, and holds nothing that a terminal obeys.
    text = "\n".join(iter_lines(result))
    assert text.replace("\n", "").isprintable()
    assert "\x1b" not in text
    text.encode()
    json.dumps(to_value(result)).encode()
    return result.exit_code


def _places(value: object, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return [
            p
            for name, item in value.items()
            for p in [(*place, name), *_places(item, (*place, name))]
        ]
    if isinstance(value, list):
        return [
            p for n, item in enumerate(value) for p in [(*place, n), *_places(item, (*place, n))]
        ]
    return []


def _put(value: object, place: tuple[str | int, ...], new: object) -> None:
    for step in place[:-1]:
        value = value[step]  # type: ignore[index]
    value[place[-1]] = new  # type: ignore[index]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_hostile_values_anywhere_fail_and_nothing_breaks(data: st.DataObject) -> None:
    files = dict(world().files)
    name = data.draw(st.sampled_from(sorted(n for n in files if n.endswith(("json", "jsonl")))))
    lines = files[name].split(b"\n") if name.endswith("jsonl") else [files[name]]
    at = data.draw(st.integers(0, max(0, len(lines) - 2)))
    value = json.loads(lines[at])
    place = data.draw(st.sampled_from(_places(value)))
    _put(value, place, data.draw(HOSTILE))
    changed = json.dumps(value, separators=(",", ":")).encode()
    lines[at] = changed
    files[name] = b"\n".join(lines)
    if name != MANIFEST_NAME:
        files = with_manifest(files)
    if files != world().files:
        assert exit_code(files) == ExitCode.EVIDENCE


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_hostile_bytes_in_any_file_fail_and_nothing_breaks(data: st.DataObject) -> None:
    files = dict(world().files)
    name = data.draw(st.sampled_from(sorted(files)))
    kept = data.draw(st.integers(0, len(files[name])))
    added = data.draw(
        st.one_of(
            st.binary(max_size=40),
            st.sampled_from(
                [b"[" * 100_000, b'{"a":' * 50_000, b"\xff", b"\x00" * 512, b"\n" * 99]
            ),
        )
    )
    changed = files[name][:kept] + added
    if changed != files[name]:
        files[name] = changed
        if name != MANIFEST_NAME:
            files = with_manifest(files)
        assert exit_code(files) == ExitCode.EVIDENCE


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=3_000))
def test_bytes_are_an_archive_only_if_they_are_the_one_of_their_files(data: bytes) -> None:
    try:
        files = parse_unverified_archive(data)
    except BundleError:
        return
    assert make_archive(files) == data


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_changed_archive_is_refused_or_is_the_one_of_its_files(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(world().files)), unique=True))
    files = {name: data.draw(st.binary(max_size=600)) for name in names}
    archive = make_archive(files)
    assert parse_unverified_archive(archive) == files
    at = data.draw(st.integers(0, len(archive) - 1))
    changed = archive[:at] + bytes([data.draw(st.integers(0, 255))]) + archive[at + 1 :]
    try:
        found = parse_unverified_archive(changed)
    except BundleError:
        return
    assert make_archive(found) == changed
