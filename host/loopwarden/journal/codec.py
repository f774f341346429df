"""What a deployment may do with the bytes of a journal before they are hashed and stored: encrypt them, say."""

from dataclasses import dataclass
from typing import Final, Protocol


class Codec(Protocol):
    """Works on the bodies of entries and on blobs. `decode(encode(data))` is `data`, at any time, on every host.

    Hashes are made of what `encode` returned, so a journal is verified without the key. Either method may raise
    anything: what cannot be encoded is not written, and what cannot be decoded holds its run.
    """

    @property
    def name(self) -> str:
        """Told in exports, so that a reader knows what it needs. Holds no secret."""
        ...

    def encode(self, data: bytes) -> bytes:
        """The bytes to store."""
        ...

    def decode(self, data: bytes) -> bytes:
        """The bytes that were given to `encode`."""
        ...


@dataclass(frozen=True, slots=True)
class PlainCodec:
    """Stores bytes as they are."""

    name: str = "plain"

    def encode(self, data: bytes) -> bytes:
        """The same bytes."""
        return data

    def decode(self, data: bytes) -> bytes:
        """The same bytes."""
        return data


PLAIN: Final = PlainCodec()
