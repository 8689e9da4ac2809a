"""A folder whose owner puts something huge in place of an entry: a miss, and no more memory."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from kvward.store.backend import Entry, EntryName, Room
from kvward.store.backends.filesystem import FilesystemBackend

FOREVER = 4_000_000_000
NAME = EntryName(tenant=b"t" * 16, scope=b"s" * 16, name=b"n" * 32)
# A disk of a terabyte, and a process that may have two gigabytes.
ROOM = Room(capacity_bytes=1 << 40, share_bytes=1 << 30)
LIMIT_BYTES = 1 << 31
HUGE_BYTES = 1 << 33


def test_a_huge_file_in_place_of_an_entry_is_a_miss(tmp_path: Path) -> None:
    backend = FilesystemBackend(tmp_path, ROOM)
    assert backend.put_many([Entry(name=NAME, data=b"sealed", expires_unix_s=FOREVER)]) == [True]
    backend.close()
    (path,) = [path for path in (tmp_path / "entries").rglob("*") if path.is_file()]
    os.truncate(path, HUGE_BYTES)  # a hole: it takes no room
    os.utime(path, (FOREVER, FOREVER))
    read = f"""
        import resource, sys
        from pathlib import Path
        from kvward.errors import StoreError
        from kvward.store.backend import EntryName, Room
        from kvward.store.backends.filesystem import FilesystemBackend
        resource.setrlimit(resource.RLIMIT_AS, ({LIMIT_BYTES}, {LIMIT_BYTES}))
        backend = FilesystemBackend(Path(sys.argv[1]), {ROOM!r})
        try:
            assert backend.get_many([{NAME!r}]) in ([None], [b""])
        except StoreError:
            pass
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(read), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
