"""A lab starts with every defect as the registry says, and answers."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from kvward.cli.process import ServerProcess
from kvward.lab.defects import DEFECTS

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("name", DEFECTS)
def test_lab_starts_with_a_defect_and_answers(name: str, tmp_path: Path) -> None:
    body = {"model": "canary", "prompt": "acorn zebra acorn", "max_tokens": 3, "temperature": 0}
    log = tmp_path / "log"
    with ServerProcess(DEFECTS[name].arguments, log=log) as server:
        request = Request(
            server.url + "/v1/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json", "authorization": "Bearer any"},
        )
        with urlopen(request) as response:
            answer = json.loads(response.read())
    assert answer["usage"]["completion_tokens"] == 3
    assert all(text == "acorn" for text in answer["choices"][0]["text"].split())
    # Planted, and nothing else: the lab says at its end what it had.
    said = [line.split(":")[0] for line in log.read_text().splitlines() if "opportunities" in line]
    assert said == [name]
