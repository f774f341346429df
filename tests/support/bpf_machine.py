"""A machine for classic BPF as seccomp runs it, written from the kernel's description and not from our assembler.

Source: linux/Documentation/networking/filter.rst, seccomp(2), linux/kernel/seccomp.c (what is permitted).
"""

import struct

WORD = 0xFFFFFFFF
DATA_BYTES = 64  # struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
SCRATCH_WORDS = 16
MOST_INSTRUCTIONS = 4096

LOADS = {0x20, 0x00, 0x60, 0x80, 0x01, 0x61, 0x81}  # A: data, constant, scratch, length; X: constant, scratch, length
STORES = {0x02, 0x03}
ARITHMETIC = {0x00: "+", 0x10: "-", 0x20: "*", 0x30: "/", 0x40: "|", 0x50: "&", 0x60: "<<", 0x70: ">>", 0xA0: "^"}
JUMPS = {0x10: "==", 0x20: ">", 0x30: ">=", 0x40: "&"}
NEGATE, JUMP_ALWAYS, RETURN_CONSTANT, RETURN_A, A_TO_X, X_TO_A = 0x84, 0x05, 0x06, 0x16, 0x07, 0x87

Instruction = tuple[int, int, int, int]


def pack_data(number: int, architecture: int, arguments: tuple[int, ...]) -> bytes:
    """What a filter sees of one call."""
    padded = (arguments + (0,) * 6)[:6]
    masked = (value & 0xFFFFFFFFFFFFFFFF for value in padded)
    return struct.pack("<IIQ6Q", number & WORD, architecture, 0x7F0000000000, *masked)


def is_permitted(program: bytes) -> bool:
    """Whether the kernel takes the program."""
    instructions = list(struct.iter_unpack("=HBBI", program))
    if not 1 <= len(instructions) <= MOST_INSTRUCTIONS or instructions[-1][0] not in (RETURN_CONSTANT, RETURN_A):
        return False
    is_each_sound = all(_is_sound(index, item, len(instructions)) for index, item in enumerate(instructions))
    return is_each_sound and _reads_what_was_stored(instructions)


def _is_sound(index: int, instruction: Instruction, length: int) -> bool:
    code, if_true, if_false, constant = instruction
    kind, operation = code & 0x07, code & 0xF0
    if code == 0x20:
        return constant % 4 == 0 and constant < DATA_BYTES
    if code in (0x60, 0x61) or code in STORES:
        return constant < SCRATCH_WORDS
    if code in LOADS or code in (RETURN_CONSTANT, RETURN_A, A_TO_X, X_TO_A, NEGATE):
        return True
    if code == JUMP_ALWAYS:
        return constant < length - index - 1
    if kind == 0x05 and operation in JUMPS and not code & ~0xFD:
        return index + 1 + max(if_true, if_false) < length
    if kind == 0x04 and operation in ARITHMETIC and not code & ~0xFC:
        is_constant = not code & 0x08
        is_zero_divisor = operation == 0x30 and is_constant and constant == 0
        is_wide_shift = operation in (0x60, 0x70) and is_constant and constant >= 32
        return not is_zero_divisor and not is_wide_shift
    return False


def _reads_what_was_stored(instructions: list[Instruction]) -> bool:
    """Whether no path reads a scratch word that it has not stored before. Jumps go forward only."""
    everything = (1 << SCRATCH_WORDS) - 1
    stored_at = [everything] * len(instructions)
    stored = 0
    for index, (code, if_true, if_false, constant) in enumerate(instructions):
        stored &= stored_at[index]
        if code in STORES:
            stored |= 1 << constant
        elif code in (0x60, 0x61):
            if not stored >> constant & 1:
                return False
        elif code & 0x07 == 0x05:
            for distance in (constant,) if code == JUMP_ALWAYS else (if_true, if_false):
                stored_at[index + 1 + distance] &= stored
            stored = everything
    return True


def run_program(program: bytes, *, number: int, architecture: int, arguments: tuple[int, ...]) -> int:
    """The verdict of a permitted program on one call."""
    return run_instructions(
        list(struct.iter_unpack("=HBBI", program)), struct.unpack("<16I", pack_data(number, architecture, arguments))
    )


def run_instructions(instructions: list[Instruction], data: tuple[int, ...]) -> int:
    """The same, for programs that run often: `data` in words."""
    a = x = position = 0
    scratch = [0] * SCRATCH_WORDS
    while True:
        code, if_true, if_false, constant = instructions[position]
        position += 1
        operand = x if code & 0x08 else constant
        match code:
            case 0x20:
                a = data[constant // 4]
            case 0x00:
                a = constant
            case 0x60:
                a = scratch[constant]
            case 0x01:
                x = constant
            case 0x61:
                x = scratch[constant]
            case 0x80:
                a = DATA_BYTES
            case 0x81:
                x = DATA_BYTES
            case 0x02:
                scratch[constant] = a
            case 0x03:
                scratch[constant] = x
            case 0x07:
                x = a
            case 0x87:
                a = x
            case 0x84:
                a = -a & WORD
            case 0x05:
                position += constant
            case 0x06:
                return constant
            case 0x16:
                return a
            case _ if code & 0x07 == 0x05:
                position += if_true if _compare(code & 0xF0, a, operand) else if_false
            case _:
                if code & 0xF0 == 0x30 and operand == 0:
                    return 0  # a division by zero ends the program with 0: the thread is killed
                a = _calculate(code & 0xF0, a, operand)


def _compare(operation: int, a: int, operand: int) -> bool:
    match JUMPS[operation]:
        case "==":
            return a == operand
        case ">":
            return a > operand
        case ">=":
            return a >= operand
        case _:
            return a & operand != 0


def _calculate(operation: int, a: int, operand: int) -> int:
    match ARITHMETIC[operation]:
        case "+":
            return a + operand & WORD
        case "-":
            return a - operand & WORD
        case "*":
            return a * operand & WORD
        case "/":
            return a // operand
        case "|":
            return a | operand
        case "&":
            return a & operand
        case "<<":
            return a << (operand & 31) & WORD
        case ">>":
            return a >> (operand & 31)
        case _:
            return a ^ operand
