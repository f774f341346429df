"""The host of a deployment: what the settings say about stores, leases, budgets and loops, for every command that runs.

`run` and `resume` choose the provider of one run; `host` and `submit` take the providers of the settings as they are.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from loopwarden.approvals import LockApprovals
from loopwarden.cli.provider_choice import NO_PROVIDER, absent_provider
from loopwarden.failures import StartRefused, StoreRefused
from loopwarden.host import Host
from loopwarden.lease_keeper import LeaseRules
from loopwarden.limits import Limits
from loopwarden.loops import Catalogue, find_loops
from loopwarden.policy import Policy
from loopwarden.provider import Provider
from loopwarden.providers.configured import find_entry, make_provider, refuse_missing_program
from loopwarden.run_folder import make_private_folder
from loopwarden.script import Script
from loopwarden.settings import Settings
from loopwarden.store.api import Store
from loopwarden.store.declared import declare_scopes
from loopwarden.store.errors import StoreError
from loopwarden.store.opening import open_store
from loopwarden.store_settings import scopes_of

HostT = TypeVar("HostT", bound=Host)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentProviders:
    """The providers that the settings name and that can be asked from here."""

    providers: Mapping[str, Provider]
    policies: Mapping[str, Policy]
    default: str
    problems: Mapping[str, str]
    """By name: why one of the settings cannot be asked from here."""


def lease_rules(settings: Settings) -> LeaseRules:
    """How hosts of these settings hold their runs."""
    store = settings.store
    return LeaseRules(
        lease_seconds=store.lease_seconds,
        kill_grace_seconds=store.kill_grace_seconds,
        poll_seconds=store.poll_seconds,
        kills=store.lease_lost == "kill",
    )


@asynccontextmanager
async def store_for_runs(settings: Settings) -> AsyncIterator[Store | None]:
    """The store that runs are journaled in; None when the settings want none.

    Raises a subclass of `StartRefused`, and `RunFolderError` when the state folder cannot be used.
    """
    make_private_folder(settings.state_folder)
    if settings.store.kind == "none":
        yield None
        return
    store = await open_store(settings)
    try:
        try:
            await declare_scopes(store, settings)
        except StoreError as error:
            raise StoreRefused(str(error)) from None
        yield store
    finally:
        await store.close()


def approvals_of(settings: Settings) -> LockApprovals | None:
    """What the settings approve; None when they require no approval."""
    if not settings.require_approved:
        return None
    assert settings.lock is not None, "settings that come from a file name a lock"
    return LockApprovals(settings.lock, shipped=settings.approve_shipped)


def make_host(
    settings: Settings,
    store: Store | None,
    *,
    providers: Mapping[str, Provider],
    policies: Mapping[str, Policy],
    default_provider: str,
    limits: Limits | None = None,
    scripts: Sequence[Script[Any, Any]] = (),
    attach_to: Mapping[str, str] | None = None,
    kind: type[HostT] = Host,  # type: ignore[assignment]
) -> HostT:
    """A host as the settings want it. `attach_to`: names of loops by names of their scripts, for budgets of loops."""
    names = attach_to or {}

    def attached(queue: str, script: str) -> list[str]:
        return scopes_of(settings.scopes, queue=queue, loop=names.get(script, script))

    return kind(
        providers=providers,
        policies=policies,
        limits=settings.limits if limits is None else limits,
        default_provider=default_provider,
        state_folder=settings.state_folder,
        settings_digest=settings.digest,
        allow_weak_confinement=settings.allow_weak_confinement,
        store=store,
        scripts=scripts,
        workspaces=settings.workspaces,
        leases=lease_rules(settings),
        max_concurrent={
            name: given.max_concurrent for name, given in settings.providers.items() if given.max_concurrent is not None
        },
        attached_scopes=attached,
        keep_prompts=settings.store.keep_prompts,
        approvals=approvals_of(settings),
        require_bound=settings.require_bound,
    )


def deployment_host(
    settings: Settings,
    store: Store | None,
    *,
    catalogue: Catalogue | None = None,
    providers: DeploymentProviders | None = None,
    limits: Limits | None = None,
) -> Host:
    """A host with everything that the settings name. Raises `InvalidRequest` for settings of loops that cannot be."""
    catalogue = find_loops(settings) if catalogue is None else catalogue
    providers = deployment_providers(settings) if providers is None else providers
    return make_host(
        settings,
        store,
        providers=providers.providers,
        policies=providers.policies,
        default_provider=providers.default,
        limits=limits,
        scripts=contract_scripts(catalogue),
        attach_to=loop_names(catalogue),
    )


def quiet_host(settings: Settings, store: Store) -> Host:
    """A host that asks no provider: for looking at runs, and for bringing those to an end that nobody drives."""
    catalogue = find_loops(settings)
    return make_host(
        settings, store, providers={}, policies={}, default_provider=NO_PROVIDER, scripts=contract_scripts(catalogue)
    )


def deployment_providers(settings: Settings) -> DeploymentProviders:
    """The providers of the settings, and the one that stands for none. One that cannot be asked here is left out."""
    providers: dict[str, Provider] = {NO_PROVIDER: absent_provider()}
    problems: dict[str, str] = {}
    names = list(settings.providers)
    if settings.default_provider is not None and settings.default_provider not in names:
        names.append(settings.default_provider)
    for name in names:
        try:
            given = find_entry(name, settings)
            refuse_missing_program(given)
            providers[name] = make_provider(name, settings, given)
        except StartRefused as refused:
            problems[name] = refused.message
    policies = {name: given.policy.to_policy() for name, given in settings.providers.items() if name in providers}
    for name, policy in policies.items():
        if policy.fallback is not None and policy.fallback not in providers:
            policies[name] = replace(policy, fallback=None)
    return DeploymentProviders(
        providers=providers, policies=policies, default=settings.default_provider or NO_PROVIDER, problems=problems
    )


def contract_scripts(catalogue: Catalogue) -> list[Script[Any, Any]]:
    """The scripts whose contracts this machine has; any host can drive the others."""
    return [loop.script for loop in catalogue.loops.values() if loop.path is None]


def loop_names(catalogue: Catalogue) -> dict[str, str]:
    """Names under which loops are installed, by the names of their scripts."""
    return {loop.script.name: name for name, loop in catalogue.loops.items()}


def store_file(settings: Settings) -> Path | None:
    """The file of a store of one machine; None when the store is none."""
    return settings.store.sqlite_path(settings.state_folder) if settings.store.kind == "sqlite" else None
