"""Real servers for tests, on loopback, in a temporary folder, gone with their `with` block."""

from services.postgres import PostgresServer
from services.s3 import S3Server
from services.valkey import ValkeyCluster, ValkeyServer

__all__ = ["PostgresServer", "S3Server", "ValkeyCluster", "ValkeyServer"]
