"""Ralph: one fresh agent per round toward one fixed objective. The workspace is the memory; one report crosses over.

    outcome = await host.run(ralph.script, ralph.Args(objective="…", max_rounds=10), workspace=path)

`script` has the shipped settings; `build(RalphSettings(…))` makes one with others.
"""

from importlib import resources
from typing import Final

from loopwarden.script import Loop, Script
from loopwarden_scripts.ralph.args import Args, RalphSettings
from loopwarden_scripts.ralph.contract import RalphContract
from loopwarden_scripts.ralph.rendering import render_text
from loopwarden_scripts.ralph.report import Report
from loopwarden_scripts.ralph.result import Reported, Result, RoundFailed

__all__ = [
    "Args",
    "RalphContract",
    "RalphSettings",
    "Report",
    "Reported",
    "Result",
    "RoundFailed",
    "build",
    "loop",
    "render_text",
    "script",
]

_FOLDER = resources.files(__name__)
# Read as text and never imported: the source belongs to the worker.
_SOURCE: Final = _FOLDER.joinpath("loop.py").read_text(encoding="utf-8")


def build(settings: RalphSettings) -> Script[Args, Result]:
    """Ralph under the settings of a deployment."""
    return Script(name="ralph", source=_SOURCE, contract=RalphContract(settings))


script: Final = build(RalphSettings())
loop: Final = Loop(
    name="ralph",
    summary="one fresh agent per round toward one fixed objective, until one reports it complete or blocked",
    settings_model=RalphSettings,
    build=build,
    readme=_FOLDER.joinpath("README.md").read_text(encoding="utf-8"),
)
