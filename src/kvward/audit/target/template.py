"""A server that has no preset, described in a TOML file: what to send, and where answers have what.

```toml
version = 1
name = "our gateway"
path = "/generate"
method = "POST"                    # the default
stream = "sse"                     # sse, json-lines or none
models_path = "/models"            # optional: asked with each key to see whether it is let in
end_mark = "[DONE]"                # optional: data that ends a stream without being JSON
max_logprobs = 20                  # optional, 0 by default
verbatim = true                    # optional: prompts reach the model without a template
salt_field = "cache_salt"          # optional: of the body, for --salt-tenants

[headers]
authorization = "Bearer {key}"
x-session = "{conversation}"

[body]                             # sent as JSON
text = "{prompt}"
limit = "{max_tokens}"             # alone in its string, so it is sent as a number
stream = true

[forged.body]                      # added by probes with a forged scope
cache_salt = "{salt}"

[forged.headers]
x-tenant = "{tenant}"

[answer]                           # paths such as "choices.0.text"; a list gives alternatives
text = "output.text"
prompt_tokens = "usage.in"
cached_tokens = ["usage.reused", "usage.cache.hit"]
done = "finished"                  # true in the part that ends a stream
```

Placeholders stand inside values, never in the text of a document, so nothing has to be escaped:
`{prompt}`, `{max_tokens}`, `{model}`, `{conversation}`, `{logprobs}`; `{key}` in headers only;
`{salt}`, `{session}`, `{tenant}` under `forged` only.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from kvward.audit.exchange import Call
from kvward.audit.plan import Route
from kvward.audit.target.answer import Answer, Counters
from kvward.audit.target.filling import fill, placeholders
from kvward.audit.target.preset import Fact, Preset, RoutePreset
from kvward.audit.target.wire import Framing, find, read_error, read_top_logprobs, to_name
from kvward.errors import ConfigError

VERSION = 1
_CALL_NAMES = frozenset({"prompt", "max_tokens", "model", "conversation", "logprobs"})
_HEADER_NAMES = frozenset({"key", "model", "conversation"})
_FORGED_NAMES = frozenset({"salt", "session", "tenant"})

Paths = str | list[str] | None
LocalPath = Annotated[str, msgspec.Meta(pattern="^/")]


class _Forged(msgspec.Struct, forbid_unknown_fields=True):
    body: dict[str, Any] = {}
    headers: dict[str, str] = {}


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    prompt_tokens: Paths = None
    completion_tokens: Paths = None
    cached_tokens: Paths = None
    created_tokens: Paths = None
    finish_reason: str | None = None
    id: str | None = None
    model: str | None = None
    error: str | None = None
    logprobs: str | None = None
    done: str | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    version: Literal[1]
    name: str
    path: LocalPath
    headers: dict[str, str]
    body: dict[str, Any]
    answer: _Answer
    method: Literal["POST", "PUT"] = "POST"
    stream: Literal["sse", "json-lines", "none"] = "none"
    models_path: LocalPath | None = None
    end_mark: str | None = None
    max_logprobs: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 0
    verbatim: bool = False
    salt_field: str | None = None
    min_prompt_tokens: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1
    forged: _Forged = msgspec.field(default_factory=_Forged)


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateShape:
    """Writes requests and reads answers as a template says."""

    template: Mapping[str, Any]
    answer_paths: _Answer
    framing: Framing = Framing.EVENTS
    end_mark: bytes | None = None

    def body(self, call: Call, *, model: str, stream: bool) -> dict[str, Any]:  # noqa: ARG002
        """Return a body. Whether it streams is the template's decision."""
        values = {
            "prompt": call.prompt,
            "max_tokens": call.max_tokens,
            "model": model,
            "conversation": call.conversation or "",
            "logprobs": call.logprobs,
        }
        filled: dict[str, Any] = fill(self.template, values)
        return filled

    def read_event(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a part."""
        self._read(value, answer)
        done = self.answer_paths.done
        if done is not None and find(value, done) is True:
            answer.finished = True

    def read_body(self, value: dict[str, Any], answer: Answer) -> None:
        """Read a whole answer."""
        self._read(value, answer)
        answer.mark_first_token()

    def _read(self, value: dict[str, Any], answer: Answer) -> None:
        paths = self.answer_paths
        found = find(value, paths.error) if paths.error is not None else None
        answer.error = (to_name(found) if found else read_error(value)) or answer.error
        text = find(value, paths.text)
        positions = [] if paths.logprobs is None else read_top_logprobs(find(value, paths.logprobs))
        if text or positions:
            answer.mark_first_token()
        answer.add_text(text)
        answer.add_logprobs(positions)
        answer.add_counts(value)
        if paths.id is not None:
            answer.add_id(find(value, paths.id))
        if paths.model is not None:
            answer.model = to_name(find(value, paths.model)) or answer.model
        if paths.finish_reason is not None:
            reason = to_name(find(value, paths.finish_reason))
            answer.finish_reason = reason or answer.finish_reason


def load_template(path: Path) -> Preset:
    """Read a template and return it as a preset with one route, named completions.

    Raises:
        ConfigError: The file cannot be read, has unknown or missing fields, or a placeholder
            where it does not belong.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        document = msgspec.convert(raw, _Document)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError(f"The template {path} cannot be read: {exc}.") from exc
    except msgspec.ValidationError as exc:
        raise ConfigError(
            f"The template {path} is not understood: {exc}.",
            hint="docs/auditing.md describes its fields.",
        ) from exc
    _check_placeholders(document, path)
    streams = document.stream != "none"
    answer = document.answer
    if streams and document.end_mark is None and answer.done is None:
        raise ConfigError(
            f"The template {path} does not say how a stream ends.",
            hint="Give end_mark, or the path answer.done.",
        )
    shape = TemplateShape(
        template=document.body,
        answer_paths=answer,
        framing=Framing(document.stream) if streams else Framing.EVENTS,
        end_mark=None if document.end_mark is None else document.end_mark.encode(),
    )
    route = RoutePreset(
        path=document.path,
        shape=shape,
        max_logprobs=0 if answer.logprobs is None else document.max_logprobs,
        method=document.method,
        verbatim=document.verbatim,
        streams=streams,
    )
    return Preset(
        name="http",
        title=to_name(document.name) or "HTTP by template",
        routes={Route.COMPLETIONS: route},
        counters=Counters(
            prompt=_alternatives(answer.prompt_tokens),
            completion=_alternatives(answer.completion_tokens),
            cached=_alternatives(answer.cached_tokens),
            created=_alternatives(answer.created_tokens),
        ),
        key_header=None,
        models_path=document.models_path,
        headers=document.headers,
        forged_body={Route.COMPLETIONS: document.forged.body},
        forged_headers=document.forged.headers,
        min_prompt_tokens=document.min_prompt_tokens,
        salt_field=document.salt_field,
        facts=(Fact(source="a template of the operator's", seen="this run"),),
    )


def _alternatives(paths: Paths) -> tuple[tuple[str, ...], ...]:
    listed = [paths] if isinstance(paths, str) else paths or []
    return tuple((path,) for path in listed)


def _check_placeholders(document: _Document, path: Path) -> None:
    known = _CALL_NAMES | _HEADER_NAMES | _FORGED_NAMES
    for place, template, allowed in [
        ("headers", document.headers, _HEADER_NAMES),
        ("body", document.body, _CALL_NAMES),
        ("forged.body", document.forged.body, _FORGED_NAMES),
        ("forged.headers", document.forged.headers, _FORGED_NAMES),
    ]:
        strange = sorted((placeholders(template) & known) - allowed)
        if strange:
            raise ConfigError(
                f"In {path} the placeholder {{{strange[0]}}} does not belong into [{place}].",
                hint="There it may be: " + ", ".join(f"{{{name}}}" for name in sorted(allowed)),
            )
    if "prompt" not in placeholders(document.body):
        raise ConfigError(f"The body in {path} has no place for {{prompt}}.")
