"""A model behind HTTP on loopback, for tests of real clients: a brain decides, a format writes, a server records.

with ModelServer(in_order(UseTool(name="write", arguments={…}), Structured(value={…}))) as server:
    ... server.url ... server.exchanges ...
"""

from support.model_server.exchange import (
    Asked,
    Brain,
    CutShort,
    Encoded,
    Fail,
    FailInStream,
    ModelAnswer,
    ModelRequest,
    Raw,
    Said,
    Say,
    Stall,
    Structured,
    Tokens,
    UseTool,
    WireFormat,
    always,
    in_order,
)
from support.model_server.server import Exchange, ModelServer

__all__ = [
    "Asked",
    "Brain",
    "CutShort",
    "Encoded",
    "Exchange",
    "Fail",
    "FailInStream",
    "ModelAnswer",
    "ModelRequest",
    "ModelServer",
    "Raw",
    "Said",
    "Say",
    "Stall",
    "Structured",
    "Tokens",
    "UseTool",
    "WireFormat",
    "always",
    "in_order",
]
