"""Exit codes: the table, and that no failure of a call shows a traceback."""

from __future__ import annotations

import pytest

from bootstrap_grpc.cli import query, status
from bootstrap_grpc.cli.contact import failures
from bootstrap_grpc.cli.exits import EXIT_OF_ERROR, Exit
from bootstrap_grpc.client import NoContact
from bootstrap_grpc.protos.errors import BootstrapError, ErrorCode
from support.cli_invoke import invoke


def test_the_codes_are_those_documented() -> None:
    assert {code.name: code.value for code in Exit} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_READY": 3,
        "NO_CONTACT": 4,
        "REFUSED": 5,
    }


def test_every_error_code_has_an_exit_code() -> None:
    assert set(EXIT_OF_ERROR) == set(ErrorCode)
    not_ready = {code for code, exit_code in EXIT_OF_ERROR.items() if exit_code is Exit.NOT_READY}
    assert not_ready == {ErrorCode.RANK_NOT_FOUND, ErrorCode.NOT_READY}
    assert EXIT_OF_ERROR[ErrorCode.DRAINING] is Exit.NO_CONTACT


@pytest.mark.parametrize(
    ("error", "exit_code", "text"),
    [
        *(
            pytest.param(
                BootstrapError(code, "why"), EXIT_OF_ERROR[code], "Error: why\n", id=code.name
            )
            for code in ErrorCode
        ),
        pytest.param(
            NoContact("192.0.2.1:18998", "refused"),
            Exit.NO_CONTACT,
            "Error: no contact with 192.0.2.1:18998: refused\n",
            id="no contact",
        ),
        pytest.param(
            BootstrapError(ErrorCode.RANK_HELD, "by \x1b[31m\nred"),
            Exit.REFUSED,
            "Error: by \\x1b[31m\\nred\n",
            id="control characters",
        ),
    ],
)
def test_a_failed_call_ends_with_its_code_and_a_text(
    error: Exception, exit_code: Exit, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __init__(self, *_args: object) -> None:
            pass

        def __enter__(self) -> None:
            with failures():
                raise error

        def __exit__(self, *_exc: object) -> None:
            pass

    monkeypatch.setattr(status, "contact", Failing)
    result = invoke("status")
    assert (result.exit_code, result.stdout, result.stderr) == (exit_code, "", text)


def test_an_interrupt_exits_as_a_shell_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(query, "contact", interrupted)
    assert invoke("query", "1").exit_code == 130
