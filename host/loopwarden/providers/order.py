"""What a supervisor is asked to do, as bytes on its socket: see `supervision.supervisor`."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from loopwarden.lease_view import LeaseView


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One program to start."""

    path: str
    """Of the file that runs."""
    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    private_folders: Sequence[Path]
    grace_seconds: float
    lease: LeaseView | None

    def encode(self) -> bytes:
        """The order as a supervisor reads it. Raises ValueError when a field holds a zero character."""
        fields = [str(self.grace_seconds), *_lease_fields(self.lease), self.path, os.fspath(self.folder)]
        fields += [str(len(self.private_folders)), *map(os.fspath, self.private_folders)]
        fields += [str(len(self.arguments)), *self.arguments]
        fields += [f"{name}={value}" for name, value in self.environment.items()]
        if any("\0" in field for field in fields):
            # It would cut the order in the wrong places.
            raise ValueError("a field holds a zero character")
        data = b"".join(os.fsencode(field) + b"\0" for field in fields)
        return len(data).to_bytes(4, "big") + data


def _lease_fields(lease: LeaseView | None) -> tuple[str, str]:
    if lease is None or not lease.kills:
        return str(math.inf), "0"
    return repr(lease.ends_at), str(lease.wind_down_seconds)
