"""Why a host of this machine, under these settings, could not drive a run of the store; hosts pass such runs over."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Self

from loopwarden.cli.deployment_host import approvals_of, contract_scripts, deployment_providers
from loopwarden.display import shown_line
from loopwarden.failures import StartRefused
from loopwarden.journal.entries import ReplayVersion
from loopwarden.loops import find_loops
from loopwarden.replay_version import contract_digest, replay_version
from loopwarden.resuming import PLAIN_DIGEST
from loopwarden.settings import COMMAND_LINE_PROVIDER, Settings
from loopwarden.store.runs import RunRow, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """What a host that is started here can drive."""

    replay: ReplayVersion
    contracts: Mapping[str, str]
    """By name of the script: digest of the contract."""
    sources: Collection[str] | None
    """Digests of the sources that are approved; None: any."""
    providers: Collection[str]
    problems: Mapping[str, str]
    """Providers of the settings that cannot be asked from here: why."""
    workspaces: Collection[str]
    is_one_machine: bool

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings allow."""
        providers, approvals = deployment_providers(settings), approvals_of(settings)
        try:
            scripts = contract_scripts(find_loops(settings))
        except StartRefused:  # settings of a loop that cannot be: no host starts with them
            scripts = []
        return cls(
            replay=replay_version(),
            contracts={script.name: contract_digest(script.contract) for script in scripts},
            sources=None if approvals is None else approvals.sources(),
            providers=providers.providers.keys(),
            problems=providers.problems,
            workspaces=settings.workspaces.keys(),
            is_one_machine=settings.store.kind == "sqlite",
        )

    def problem_of(self, row: RunRow) -> str | None:
        """Why a host here could not drive the run, in a clause; None when it could, or when nobody has to."""
        if row.status is Status.FINISHED:
            return None
        return (
            self._approval(row)
            or self._version(row)
            or self._contract(row)
            or self._provider(row)
            or self._workspace(row)
        )

    def _approval(self, row: RunRow) -> str | None:
        if self.sources is None or row.source_digest in self.sources:
            return None
        return "its script is not approved here, or not any more: see `loopwarden approve`"

    def _version(self, row: RunRow) -> str | None:
        if row.replay.python != self.replay.python:
            return f"it needs Python {shown_line(row.replay.python, 20)}, and this is {self.replay.python}"
        if row.replay.restricted_python != self.replay.restricted_python:
            wanted = shown_line(row.replay.restricted_python, 20)
            return f"it needs RestrictedPython {wanted}, and this is {self.replay.restricted_python}"
        if row.replay.policy != self.replay.policy:
            return "it was begun under another language policy, by another version of Loopwarden"
        return None

    def _contract(self, row: RunRow) -> str | None:
        if row.contract_digest in (PLAIN_DIGEST, self.contracts.get(row.script)):
            return None
        name = shown_line(row.script, 100)
        if row.script in self.contracts:
            return f"the contract of the loop {name} has changed since"
        return f"the loop {name} is not installed here"

    def _provider(self, row: RunRow) -> str | None:
        if row.provider in self.providers:
            return None
        if row.provider == COMMAND_LINE_PROVIDER:
            return "its agent is a program that was given after --, which only `resume` can start again"
        name = shown_line(row.provider, 100)
        problem = self.problems.get(row.provider)
        if problem is not None:
            return f"its provider {name} cannot be asked from here: {problem}"
        return f"its provider {name} is not in the settings here"

    def _workspace(self, row: RunRow) -> str | None:
        workspace = row.workspace
        if workspace is None or workspace in self.workspaces:
            return None
        name = shown_line(workspace, 200)
        if "/" not in workspace:
            return f"its workspace {name} is not declared here"
        return None if self.is_one_machine else f"its workspace {name} is a folder of the machine that it came from"
