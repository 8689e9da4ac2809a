"""A server without a preset, described in a file."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from kvward.audit.exchange import Call, Ending, ForgedScope
from kvward.audit.target import Target, load_template
from kvward.errors import ConfigError, TargetRefusedError

BASE = """
version = 1
name = "ours"
path = "/v9/say"
method = "PUT"
{stream}
models_path = "/keys/me"

[headers]
x-api-token = "{{key}}"
x-session = "{{conversation}}"

[body]
question = {{ text = "Q: {{prompt}}", tags = ["{{model}}", "fixed"] }}
limit = "{{max_tokens}}"
"odd {{ brace" = true

[forged.body]
scope = {{ salt = "{{salt}}" }}

[forged.headers]
x-tenant = "{{tenant}}"

[answer]
text = "out.0.say"
prompt_tokens = "n.in"
cached_tokens = ["n.reused", "n.cache.hit"]
created_tokens = "n.kept"
completion_tokens = "n.out"
finish_reason = "why"
id = "ref"
error = "problem.text"
logprobs = "lp"
done = "last"
"""


class Own:
    """A server that speaks nobody's API."""

    def __init__(self, framing: str) -> None:
        self.framing = framing
        self.asked: list[tuple[dict[str, Any], dict[str, str]]] = []
        self.problem: str | None = None

    async def models(self, request: web.Request) -> web.Response:
        known = request.headers.get("x-api-token") in {"ka-secret", "kb-secret"}
        return web.json_response({}, status=200 if known else 403)

    async def say(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((await request.json(), dict(request.headers)))
        if self.problem is not None:
            return web.json_response({"problem": {"text": self.problem}})
        end = {"n": {"in": 5, "cache": {"hit": 3}, "kept": 2, "out": 1}, "why": "cap", "last": True}
        say = {"out": [{"say": " acorn"}], "ref": "r-1", "lp": [{" acorn": -0.5, " x": -2}]}
        if self.framing == "none":
            return web.json_response(say | end)
        response = web.StreamResponse()
        await response.prepare(request)
        for part in (say, end):
            text = json.dumps(part)
            framed = f": note\ndata: {text}\n\n" if self.framing == "sse" else f"{text}\n"
            await response.write(framed.encode())
        return response

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.get("/keys/me", self.models), web.put("/v9/say", self.say)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


def template(tmp_path: Path, framing: str) -> Path:
    path = tmp_path / "server.toml"
    path.write_text(
        BASE.format(stream=f'stream = "{framing}"\nmax_logprobs = 2\nsalt_field = "tenancy"')
    )
    return path


def call(**changes: Any) -> Call:
    prompt = 'say "{model}" \\ {key}\n'
    values = {"tenant": "a", "prompt": prompt, "max_tokens": 1, "conversation": "c1"} | changes
    return Call(**values)


@pytest.mark.parametrize("framing", ["sse", "json-lines", "none"])
async def test_described_server_is_asked_and_read(tmp_path: Path, framing: str) -> None:
    own = Own(framing)
    preset = load_template(template(tmp_path, framing))
    keys = {"a": "ka-secret", "b": "kb-secret"}
    async with (
        own.serving() as url,
        Target(url, keys, model="m-1", max_connections=2, preset=preset) as target,
    ):
        forged = ForgedScope(salt="s", session="c", tenant="b")
        reply = await target.send(call(logprobs=20, forged=forged))
        own.problem = "tenant ka-secret is over quota"
        refused = await target.send(call(conversation=None))
        await target.send(call(salt="own"))
    assert reply.error is None
    assert reply.ending is Ending.DONE
    assert (reply.text, reply.finish_reason, reply.response_ids) == (" acorn", "cap", ("r-1",))
    counts = (reply.prompt_tokens, reply.cached_tokens, reply.created_tokens)
    assert (*counts, reply.completion_tokens) == (5, 3, 2, 1)
    assert reply.top_logprobs == (((" acorn", -0.5), (" x", -2.0)),)
    body, headers = own.asked[0]
    # Nothing in a prompt is a placeholder, and nothing has to be escaped.
    assert body["question"] == {
        "text": 'Q: say "{model}" \\ {key}\n',
        "tags": ["m-1", "fixed"],
    }
    assert body["limit"] == 1
    assert body["odd { brace"] is True
    assert body["scope"] == {"salt": "s"}
    assert (headers["x-api-token"], headers["x-session"], headers["x-tenant"]) == (
        "ka-secret",
        "c1",
        "b",
    )
    assert "x-session" not in own.asked[1][1]
    assert own.asked[2][0]["tenancy"] == "own"
    assert "tenancy" not in body
    assert refused.ending is Ending.FAILED
    assert refused.error == "tenant *** is over quota"


async def test_key_that_is_refused_and_a_model_that_nobody_names(tmp_path: Path) -> None:
    own = Own("none")
    preset = load_template(template(tmp_path, "none"))
    async with own.serving() as url:
        with pytest.raises(TargetRefusedError, match="key of tenant b"):
            async with Target(
                url, {"a": "ka-secret", "b": "no"}, model="m", max_connections=1, preset=preset
            ):
                pass
        with pytest.raises(TargetRefusedError, match="model"):
            async with Target(
                url, {"a": "ka-secret"}, model=None, max_connections=1, preset=preset
            ):
                pass


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("version = 1", "version = 2", "not understood"),
        ('path = "/v9/say"', 'path = "v9"', "not understood"),
        ('method = "PUT"', 'method = "GET"', "not understood"),
        ("[answer]\n", "[answer]\nsurprise = 1\n", "surprise"),
        ('text = "out.0.say"\n', "", "text"),
        ("Q: {prompt}", "Q", "no place for"),
        ("Q: {prompt}", "{prompt} {key}", "does not belong"),
        ('"{conversation}"', '"{salt}"', "does not belong"),
        ('done = "last"\n', "", "how a stream ends"),
        ("[body]", "[body", "cannot be read"),
    ],
)
def test_file_that_is_not_understood_is_refused(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    path = template(tmp_path, "sse")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=words):
        load_template(path)
