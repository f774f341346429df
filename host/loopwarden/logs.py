"""Logging by structlog: one line an event, the run id bound, nothing secret.

The command line sends lines to the error stream. An embedder that configures structlog gets them its own way; one that
does not gets them through the standard library's logger "loopwarden", so that nothing is printed by surprise.
"""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from loopwarden.display import shown_line, shown_text

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_MAX_VALUE_CHARS: Final = 2000


class _ErrorStream:
    """The error stream of the moment: live progress puts its own in place while it draws."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def configure_logs(level: str) -> None:
    """Send log lines of at least `level` (a key of `LEVELS`) to the error stream."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # Before values are escaped: an exception can quote an agent too.
            structlog.processors.format_exc_info,
            _escape_values,
            structlog.dev.ConsoleRenderer(colors=False),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=_ErrorStream()),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def host_logger() -> Any:
    """The logger of what concerns no single run."""
    if structlog.is_configured():
        return structlog.get_logger("loopwarden")
    return structlog.wrap_logger(
        logging.getLogger("loopwarden"),
        processors=[structlog.stdlib.filter_by_level, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def run_logger(run_id: str) -> Any:
    """The logger of one run, bound to its id."""
    return host_logger().bind(run_id=run_id)


def bind_run(run_id: str) -> None:
    """Name the run in every line from here on, in this task and those that it starts."""
    structlog.contextvars.bind_contextvars(run_id=run_id)


def _escape_values(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Agents can put text into log lines, so log lines are shown like everything else that agents wrote."""
    for key, value in event.items():
        if key == "exception" and isinstance(value, str):
            event[key] = shown_text(value)
        elif isinstance(value, str):
            event[key] = shown_line(value, _MAX_VALUE_CHARS)
        elif value is not None and not isinstance(value, bool | int | float):
            event[key] = shown_line(repr(value), _MAX_VALUE_CHARS)
    return event
