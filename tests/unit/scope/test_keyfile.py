"""The root key file is private or it is refused."""

import os
from pathlib import Path

import pytest

from kvward.errors import KeyUnavailableError
from kvward.scope import create_root_key, load_root_key


def test_created_key_is_private_and_loads_again(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        key = create_root_key(tmp_path / "root.key")
    finally:
        os.umask(previous)
    assert (tmp_path / "root.key").stat().st_mode & 0o777 == 0o600
    assert load_root_key(tmp_path / "root.key").matches(key)


def test_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "root.key"
    key = create_root_key(path)
    with pytest.raises(KeyUnavailableError, match="never overwritten"):
        create_root_key(path)
    assert load_root_key(path).matches(key)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o620])
def test_key_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "root.key"
    create_root_key(path)
    path.chmod(mode)
    with pytest.raises(KeyUnavailableError, match="open to group or others") as caught:
        load_root_key(path)
    assert "chmod 600" in str(caught.value.hint)


@pytest.mark.parametrize(
    "content",
    [b"", b"kvward-root-1:", b"kvward-root-1:AAAA", b"other:" + b"A" * 43 + b"=", b"\xff" * 60],
)
def test_file_that_holds_no_key_is_refused_without_quoting_it(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "root.key"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(KeyUnavailableError, match="does not hold"):
        load_root_key(path)


def test_missing_folder_and_link_are_refused_with_a_mend(tmp_path: Path) -> None:
    with pytest.raises(KeyUnavailableError) as caught:
        load_root_key(tmp_path / "none.key")
    assert caught.value.hint
    with pytest.raises(KeyUnavailableError, match="cannot be created"):
        create_root_key(tmp_path / "no" / "root.key")
    create_root_key(tmp_path / "root.key")
    (tmp_path / "link.key").symlink_to(tmp_path / "root.key")
    with pytest.raises(KeyUnavailableError):
        load_root_key(tmp_path / "link.key")
    os.mkfifo(tmp_path / "pipe.key", 0o600)
    with pytest.raises(KeyUnavailableError, match="regular file"):
        load_root_key(tmp_path / "pipe.key")
    (tmp_path / "folder.key").mkdir(mode=0o700)
    with pytest.raises(KeyUnavailableError, match="regular file"):
        load_root_key(tmp_path / "folder.key")
