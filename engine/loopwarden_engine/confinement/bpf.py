"""A small assembler for the classic BPF that seccomp takes: labels instead of counted jumps.

Source: linux/Documentation/networking/filter.rst and linux/include/uapi/linux/{filter,bpf_common}.h.
"""

import struct
from dataclasses import dataclass
from typing import Final

__all__ = [
    "AND",
    "BYTES_PER_INSTRUCTION",
    "FALL_THROUGH",
    "JUMP_IF_ANY_BIT",
    "JUMP_IF_AT_LEAST",
    "JUMP_IF_EQUAL",
    "LOAD_WORD",
    "RETURN",
    "Assembler",
]

LOAD_WORD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
JUMP_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
JUMP_IF_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
JUMP_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
RETURN: Final = 0x06  # BPF_RET | BPF_K

FALL_THROUGH: Final = ""
"""The label of "go on with the next instruction"."""

BYTES_PER_INSTRUCTION: Final = 8
_INSTRUCTION: Final = struct.Struct("=HBBI")  # struct sock_filter: code, jump if true, jump if false, constant
_FARTHEST_JUMP: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class _Instruction:
    code: int
    constant: int
    if_true: str
    if_false: str


class Assembler:
    """Collects instructions and labels; `assemble` gives the bytes of a `sock_filter` array."""

    def __init__(self) -> None:
        self._instructions: list[_Instruction] = []
        self._labels: dict[str, int] = {}

    def add(self, code: int, constant: int, *, if_true: str = FALL_THROUGH, if_false: str = FALL_THROUGH) -> None:
        """Append one instruction; the two labels count for jumps only."""
        self._instructions.append(_Instruction(code=code, constant=constant, if_true=if_true, if_false=if_false))

    def label(self, name: str) -> None:
        """Let `name` mean the next instruction. Raises `ValueError` when it is taken."""
        if name in self._labels:
            raise ValueError(f"label {name!r} is defined twice")
        self._labels[name] = len(self._instructions)

    def assemble(self) -> bytes:
        """The program. Raises `ValueError` for a label that is unknown, behind the jump, or too far ahead."""
        return b"".join(
            _INSTRUCTION.pack(
                item.code,
                self._distance(index, item.if_true),
                self._distance(index, item.if_false),
                item.constant & 0xFFFFFFFF,
            )
            for index, item in enumerate(self._instructions)
        )

    def _distance(self, index: int, name: str) -> int:
        if name == FALL_THROUGH:
            return 0
        target = self._labels.get(name)
        if target is None:
            raise ValueError(f"label {name!r} is not defined")
        distance = target - index - 1
        if not 0 <= distance <= _FARTHEST_JUMP:
            raise ValueError(f"label {name!r} is {distance} instructions away, out of reach of a jump")
        return distance
