"""ENFORCE inside vLLM: a KV connector that scopes its prefix cache and keeps sealed blocks.

vLLM finds `KvwardConnector` here; it is imported when asked for, because only it needs vLLM.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "KvwardConnector":
        from kvward.adapters.vllm.connector import KvwardConnector

        return KvwardConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
