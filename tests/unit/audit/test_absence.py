"""A flush is believed when every address was seen away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from kvward.audit.target import absence as module
from kvward.audit.target import watch_absence


class Addresses:
    """Answers as told: for each address what it answers to each question, the last one for good."""

    def __init__(self, *answers: Sequence[bool]) -> None:
        self.urls = tuple(str(number) for number in range(len(answers)))
        self._answers = [list(of_one) for of_one in answers]

    async def answers_at(self, replica: int) -> bool:
        mine = self._answers[replica]
        return mine.pop(0) if len(mine) > 1 else mine[0]


def seen_away(target: Addresses, *, questions: int = 20) -> bool:
    async def look() -> bool:
        async with watch_absence(target) as absence:
            for _ in range(questions):
                await asyncio.sleep(0)
        return absence.is_complete

    return asyncio.run(look())


@pytest.fixture(autouse=True)
def without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WATCH_S", 0)


@pytest.mark.parametrize(
    ("answers", "away"),
    [
        ([[True]], False),
        ([[True, True, False, True]], True),
        ([[False, True]], True),
        ([[True, False, True], [True, True, True, False, True]], True),  # one after the other
        ([[True, False, True], [True]], False),  # one of two was never restarted
    ],
)
def test_each_address_has_to_be_away_once(answers: list[list[bool]], away: bool) -> None:
    assert seen_away(Addresses(*answers)) is away


def test_what_fails_inside_ends_the_watch() -> None:
    async def look() -> None:
        async with watch_absence(Addresses([True])):
            raise ValueError("the command failed")

    with pytest.raises(ValueError, match="the command failed"):
        asyncio.run(look())
