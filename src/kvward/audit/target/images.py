"""How a picture is put into a request. So far for the lab, whose pictures are pixels alone."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from kvward.audit.exchange import Call, Image

AddImage = Callable[[dict[str, Any], Call], dict[str, Any]]


def add_media(body: dict[str, Any], call: Call) -> dict[str, Any]:
    """Return a body with a field for pictures that stand before the prompt."""
    if call.image is None:
        return body
    image = call.image
    pixels = base64.b64encode(image.pixels).decode("ascii")
    return body | {"media": [{"width": image.width, "height": image.height, "pixels": pixels}]}


def add_image_part(body: dict[str, Any], call: Call) -> dict[str, Any]:
    """Return a chat whose one message begins with a picture, as OpenAI's API has it."""
    if call.image is None:
        return body
    parts = [
        {"type": "image_url", "image_url": {"url": _data_url(call.image)}},
        {"type": "text", "text": call.prompt},
    ]
    return body | {"messages": [{"role": "user", "content": parts}]}


def _data_url(image: Image) -> str:
    pixels = base64.b64encode(image.pixels).decode("ascii")
    return f"data:image/x-lab;width={image.width};height={image.height};base64,{pixels}"
