"""Options of a loop from the model of its arguments."""

from typing import Any

import pytest
import typer
from pydantic import BaseModel, Field
from typer.main import get_command

from loopwarden.cli.loop_commands import RunOptions, loop_command
from loopwarden.cli.request import Request, Target
from loopwarden.contract import PlainContract
from loopwarden.failures import ArgsInvalid
from loopwarden.script import Script


class Args(BaseModel):
    topic: str = Field(description="What it is about.")
    deep_levels: int | None = Field(default=None, alias="deepLevels")
    factor: float = 1.0
    loud: bool | None = None
    names: list[str] = []
    workspace: str | None = None


class ModelledContract(PlainContract):
    args_model = Args


def parse(*argv: str, program: tuple[str, ...] = (), fails: ArgsInvalid | None = None) -> tuple[Request, RunOptions]:
    seen: list[tuple[Request, RunOptions]] = []

    def act(request: Request, options: RunOptions) -> int:
        if fails is not None:
            raise fails
        seen.append((request, options))
        return 0

    script: Script[Any, Any] = Script(name="own", source="", contract=ModelledContract())
    target = Target(name="own", script=script, file=None)
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(loop_command(target, total_is_set=False, program=program, action=act))
    get_command(app)(args=list(argv), prog_name="own", standalone_mode=False)
    return seen[0]


def test_each_field_is_an_option_under_its_name_in_json() -> None:
    request, _ = parse("--topic", "x", "--deep-levels", "3", "--factor", "2.5", "--loud", "--names", '["a"]')
    assert request.args == {"topic": "x", "deepLevels": 3, "factor": 2.5, "loud": True, "names": ["a"]}


def test_what_is_not_given_is_left_to_the_contract() -> None:
    request, options = parse("--topic", "x")
    assert request.args == {"topic": "x"}
    assert (request.checks, request.workspace, request.deadline_seconds) == ((), None, None)
    assert options == RunOptions(dry_run=False, json=False)


def test_a_false_flag_and_a_zero_are_values() -> None:
    assert parse("--topic", "x", "--no-loud", "--deep-levels", "0")[0].args == {
        "topic": "x",
        "loud": False,
        "deepLevels": 0,
    }


def test_a_field_that_is_named_like_an_option_of_ours_gets_a_prefix() -> None:
    request, _ = parse("--topic", "x", "--arg-workspace", "w")
    assert request.args == {"topic": "x", "workspace": "w"}


def test_the_options_of_every_run_arrive() -> None:
    request, options = parse(
        "--topic", "x", "--check", "a b", "--check", "c", "--deadline", "2h", "--agent-timeout", "90s",
        "--provider", "p", "--dry-run", "--json", program=("sh", "-c", "true"),
    )  # fmt: skip
    assert request.checks == ("a b", "c")
    assert (request.deadline_seconds, request.agent_timeout_seconds) == (7200, 90)
    assert (request.provider, request.program) == ("p", ("sh", "-c", "true"))
    assert options == RunOptions(dry_run=True, json=True)


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--topic", "x", "--deep-levels", "03"),
        ("--topic", "x", "--factor", "nan"),
        ("--topic", "x", "--names", "["),
    ],
)
def test_a_missing_or_malformed_option_is_a_usage_error(argv: tuple[str, ...]) -> None:
    with pytest.raises(typer.TyperException):
        parse(*argv)


def test_a_contract_that_names_its_argument_is_quoted_in_words_of_the_option() -> None:
    with pytest.raises(ArgsInvalid, match=r"^--deep-levels must be at least 1$"):
        parse("--topic", "x", fails=ArgsInvalid("deepLevels must be at least 1"))


def test_what_is_said_about_the_agent_and_its_caps_is_in_the_request() -> None:
    request, _ = parse(
        "--topic", "x", "--provider", "claude", "--pass-env", "A_KEY", "--pass-env", "B_KEY", "--model", "m",
        "--max-extra-attempts", "0", "--max-cost", "2.50", "--share-workspace", "--isolation", "worktree",
    )  # fmt: skip
    assert (request.provider, request.pass_env, request.model) == ("claude", ("A_KEY", "B_KEY"), "m")
    assert (request.max_extra_attempts, request.max_cost_usd) == (0, 2.5)
    assert (request.share_workspace, request.isolation) == (True, "worktree")
    plain, _ = parse("--topic", "x")
    assert (plain.pass_env, plain.max_extra_attempts, plain.max_cost_usd) == ((), None, None)
    assert (plain.share_workspace, plain.isolation) == (False, None)
