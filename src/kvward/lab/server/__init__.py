"""The lab's OpenAI-compatible server: pure ASGI."""

from kvward.lab.server.app import create_app
from kvward.lab.server.serve import LabServer, serve_lab

__all__ = ["LabServer", "create_app", "serve_lab"]
