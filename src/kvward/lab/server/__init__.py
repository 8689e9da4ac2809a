"""The lab's OpenAI-compatible server: pure ASGI."""

from kvward.lab.server.app import create_app

__all__ = ["create_app"]
