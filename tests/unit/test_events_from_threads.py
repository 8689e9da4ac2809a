"""Events that several threads report at once are all counted."""

from __future__ import annotations

import threading
from collections import Counter

from kvward.events import EventCounter


def test_no_count_is_lost_between_two_threads() -> None:
    counter = EventCounter()
    others: list[threading.Thread] = []

    class Interrupted(Counter[str]):
        def __missing__(self, key: str) -> int:
            # Here the interpreter may turn to another thread, and so it does once.
            if not others:
                others.append(threading.Thread(target=counter.emit, args=["store.refused"]))
                others[0].start()
                others[0].join(timeout=0.2)
            return 0

    counter._counts = Interrupted()
    counter.emit("store.refused")
    others[0].join()
    assert counter.counts() == {"store.refused": 2}
