"""What script, worker and host agree on about the hooks. Kept apart from hooks.py, which only a worker may load."""

from typing import Final

OPTIONS: Final = ("label", "phase", "schema", "provider", "model")
MAX_TITLE_CHARS: Final = 200
"""Labels, phases and titles, in code points."""
HOOK_NAMES: Final = ("agent", "log", "parallel", "phase", "pipeline")
