"""A bucket that speaks S3, reached with bounded waits and few retries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError
from obstore.store import S3Store

from kvward.errors import BackendUnavailableError

if TYPE_CHECKING:
    from obstore.store import S3Config  # a type only; the module does not have it when it runs


def connect_s3(
    bucket: str,
    *,
    region: str,
    endpoint: str | None = None,
    access_key_id: str | None = None,
    secret_access_key: str | None = None,
    timeout_s: float = 5.0,
    max_retries: int = 1,
) -> S3Store:
    """Describe a bucket. Nothing is sent yet.

    Args:
        bucket: Its name. It has neither versioning nor object lock.
        region: Its region; anything that the server accepts, if it is not Amazon's.
        endpoint: Address of a server that is not Amazon's. `http://` only for loopback and for
            networks that are trusted with who reads what, since the content is sealed.
        access_key_id: None for what the environment or the machine's role gives.
        secret_access_key: None likewise. [secret]
        timeout_s: For one request, from connecting to the last byte.
        max_retries: Of one request, after an answer or a silence that may be passing.
    """
    config: S3Config = {"region": region}
    if access_key_id is not None:
        config["access_key_id"] = access_key_id
    if secret_access_key is not None:
        config["secret_access_key"] = secret_access_key
    if endpoint is not None:
        config["endpoint"] = endpoint
    return S3Store(
        bucket,
        config=config,
        client_options={
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=timeout_s),
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
        },
        retry_config={
            "max_retries": max_retries,
            "retry_timeout": timedelta(seconds=timeout_s * (max_retries + 1)),
            "backoff": {
                "init_backoff": timedelta(milliseconds=50),
                "max_backoff": timedelta(milliseconds=500),
                "base": 2,
            },
        },
    )


@contextmanager
def translated() -> Iterator[None]:
    """Raise errors of the client as errors of a store."""
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as exc:
        raise BackendUnavailableError(
            "The object store refuses these credentials.",
            hint="They need to list, read, write and delete objects of this bucket.",
        ) from exc
    except FileNotFoundError as exc:
        raise BackendUnavailableError(
            "The object store has no such bucket.", hint="Create it, without versioning."
        ) from exc
    except (BaseError, OSError) as exc:
        raise BackendUnavailableError("The object store does not answer as it should.") from exc
