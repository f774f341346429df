"""What the host makes of a call: the default label, and how long a hostile prompt may hold it up."""

import time

from hypothesis import given
from hypothesis import strategies as st

from loopwarden.call_options import LABEL_CHARS, default_label

SPACES = "ab \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029\u00a0\u3000"


@given(prompt=st.text(st.sampled_from(SPACES), max_size=120) | st.text(st.sampled_from("a \n"), max_size=120))
def test_the_default_label_is_the_first_line_that_is_not_empty(prompt: str) -> None:
    """Trimmed first, then cut, whatever ends a line."""
    lines = [line.strip() for line in prompt.splitlines()]
    assert default_label(prompt) == next((line for line in lines if line), "")[:LABEL_CHARS]


def test_a_prompt_of_a_million_empty_lines_has_its_label_at_once() -> None:
    """Split into lines, each such prompt would hold up the host for a tenth of a second."""
    began = time.process_time()
    for _ in range(20):
        assert default_label("\n" * 1_000_000 + "x") == "x"
        assert default_label("x" * 1_000_000) == "x" * LABEL_CHARS
    assert time.process_time() - began < 1
