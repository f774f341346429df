"""Help pages that name arguments as the reference of the command line does: `RUN`, `PATH…`, without their types."""

from typing import Any

from typer.core import TyperCommand


class PlainCommand(TyperCommand):
    """A command with such a help page."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """What stands behind the name of the command."""
        options = [self.options_metavar] if self.options_metavar else []
        return [*options, *(name for name, _ in self._rows(ctx, "argument"))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments and options, each with its help."""
        for title in ("Arguments", "Options"):
            rows = self._rows(ctx, title[:-1].lower())
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _rows(self, ctx: Any, kind: str) -> list[tuple[str, str]]:
        items = [item for item in self.get_params(ctx) if item.param_type_name == kind]
        rows = [record for item in items if (record := item.get_help_record(ctx)) is not None]
        return rows if kind == "option" else [(name.partition(" <")[0], text) for name, text in rows]
