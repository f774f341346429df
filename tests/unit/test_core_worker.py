"""What a worker makes of sources and of an end of memory, so that each gives a typed message that fits."""

from loopwarden_engine.execution import compile_source
from loopwarden_engine.message_decoding import decode_from_worker
from loopwarden_engine.messages import Ready, Rejected, Start, encode_from_worker


def start_of(source: str) -> Start:
    return Start(source=source, args={}, max_items_per_call=1, max_narration=1, max_frame_bytes=64 * 1024)


def test_a_refusal_fits_into_the_smallest_frame() -> None:
    """It lists what fits, from the first violation on."""
    name = "é" * 300
    source = "def main(args):\n" + "".join(f"    x.__{name} = _{name}\n" for _ in range(300))
    rejected = compile_source(start_of(source))
    assert isinstance(rejected, Rejected)
    payload = encode_from_worker(rejected)
    assert len(payload) <= 64 * 1024
    assert len(rejected.violations) > 20
    assert decode_from_worker(payload) == rejected


def test_what_the_parser_quotes_is_cut() -> None:
    """A name of any length stands in its message; the host would take a longer one for a breach."""
    rejected = compile_source(start_of(f"def f({'a' * 5000}, {'a' * 5000}): pass\n"))
    assert isinstance(rejected, Rejected)
    assert decode_from_worker(encode_from_worker(rejected)) == rejected


def test_a_docstring_that_is_no_unicode_text_is_sent_all_the_same() -> None:
    """An escape puts a lone surrogate into it."""
    compiled = compile_source(start_of('"""a \\ud800 b"""\ndef main(args):\n    return 1\n'))
    assert isinstance(compiled, tuple)
    ready = compiled[1]
    assert isinstance(ready, Ready)
    assert ready.summary == "a ? b"
    assert decode_from_worker(encode_from_worker(ready)) == ready
