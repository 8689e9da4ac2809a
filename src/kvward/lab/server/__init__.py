"""The lab's OpenAI-compatible server: pure ASGI."""

from kvward.lab.server.app import ServerOptions, create_app

__all__ = ["ServerOptions", "create_app"]
