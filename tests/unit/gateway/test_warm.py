"""Only an operator fills a public prefix, with the prefix itself and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from kvward.errors import UsageError
from kvward.events import EventCounter
from kvward.gateway import make_policy
from kvward.gateway.front import Front, Passed
from kvward.gateway.inventory import NOT_SEEN
from kvward.gateway.warm import WARM_PATH, write_warm_up
from kvward.keeping import RegisteredPrefix
from kvward.scope import RootKey, ScopeIssuer, verify_token
from kvward.scope.owner import OWNER_FIELD, verify_owner

ISSUER = ScopeIssuer.from_root_key(RootKey(bytes(32)), deployment="d")
PREFIX = RegisteredPrefix(name="p", token_ids=(5, 6, 7))
JSON = b"application/json"


def write(value: object, *, owner_tags: bool = True) -> dict[str, Any]:
    body = write_warm_up(
        json.dumps(value).encode(),
        content_type=JSON,
        prefixes=[PREFIX],
        issuer=ISSUER,
        owner_tags=owner_tags,
    )
    result: dict[str, Any] = json.loads(body)
    return result


def test_the_prompt_is_the_prefix_and_the_scope_is_public() -> None:
    body = write({"prefix": "p", "model": "m"})
    assert body["prompt"] == [5, 6, 7]
    assert body["max_tokens"] == 1
    token = body["cache_salt"]
    verified = verify_token(token, token_key=ISSUER.token_key)
    assert verified.scope_id == ISSUER.scope_id(PREFIX.scope(ISSUER))
    owner = verify_owner(
        body["kv_transfer_params"][OWNER_FIELD], token=token, token_key=ISSUER.token_key
    )
    assert owner == PREFIX.owner(ISSUER, token=token)
    assert "kv_transfer_params" not in write({"prefix": "p", "model": "m"}, owner_tags=False)


def test_other_tokens_or_another_name_are_another_scope() -> None:
    scopes = {
        ISSUER.scope_id(prefix.scope(ISSUER))
        for prefix in (
            PREFIX,
            RegisteredPrefix(name="p", token_ids=(5, 6, 8)),
            RegisteredPrefix(name="q", token_ids=(5, 6, 7)),
        )
    }
    assert len(scopes) == 3


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"prefix": "other", "model": "m"},
        {"prefix": "p"},
        {"prefix": 1, "model": "m"},
        {"prefix": "p", "model": "m", "prompt": "mine"},
        {"prefix": "p", "model": "m", "cache_salt": "mine"},
    ],
)
def test_anything_else_is_refused(value: object) -> None:
    with pytest.raises(UsageError):
        write(value)


@pytest.mark.parametrize(("key", "status"), [("operator", 200), ("tenant", 404), ("x", 401)])
async def test_only_an_operator_may(key: str, status: int) -> None:
    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()

    policy = make_policy(
        {
            "deployment": "d",
            "root_key_file": "none",
            "upstream": "http://127.0.0.1:1",
            "levels": {"chat_completions": "conversation", "completions": "conversation"},
            "tenants": [{"name": "a", "key_sha256": [digest("tenant")]}],
            "operators": [{"name": "o", "key_sha256": [digest("operator")]}],
        },
        source="test",
    )
    front = Front(
        policy, issuer=ISSUER, events=EventCounter(), inventory=NOT_SEEN, prefixes=[PREFIX]
    )
    passed: list[Passed] = []
    statuses: list[int] = []
    content = json.dumps({"prefix": "p", "model": "m"}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def pass_on(request: Passed, *_: Any) -> None:
        passed.append(request)
        statuses.append(200)

    async def render(_: bytes) -> None:
        raise AssertionError("Nothing is rendered.")

    await front.answer(
        {
            "type": "http",
            "method": "POST",
            "path": WARM_PATH,
            "raw_path": WARM_PATH.encode(),
            "query_string": b"",
            "headers": [
                (b"authorization", f"Bearer {key}".encode()),
                (b"content-type", JSON),
            ],
        },
        receive,
        send,
        pass_on=pass_on,
        render=render,
    )
    assert statuses == [status]
    assert [request.path for request in passed] == (["/v1/completions"] if status == 200 else [])
