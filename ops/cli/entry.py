"""The console script. It imports typer only after checking that it is installed."""

from __future__ import annotations

import sys
from typing import NoReturn

from statehold.common.visible import visible
from statehold.ops.cli.common import early_signals, lasting_output

if sys.argv[1:2] == ["run"]:
    early_signals.listen()


def main() -> None:
    """Run `statehold`. A statehold error is one line and exit code 1; wrong usage is typer's 2."""
    _require_extra()
    from statehold.errors import StateholdError
    from statehold.ops.cli.main import app
    from statehold.ports import OutOfRange

    lasting_output.install()
    try:
        app()
    except SystemExit as end:
        if sys.argv[1:2] == ["run"]:
            _see_it_end(end.code)
        raise
    except StateholdError as error:
        from statehold.ops.reports.acl_hint import explained

        _exit_rejected(error)
        sys.exit(visible(f"statehold: {error}{explained(error)}{_name_of(error)}"))
    except OutOfRange as error:
        sys.exit(
            f"statehold: records were deleted while this command read them: {error}. A running service truncates its "
            "topics behind each full snapshot. Next: run the command again"
        )
    except OSError as error:
        if error.filename is None:  # not a file of the user's, so perhaps a bug
            raise
        sys.exit(f"statehold: {error.filename}: {error.strerror}")
    except KeyboardInterrupt:
        _exit_interrupted()
    except SystemError as error:  # an interrupted call of confluent-kafka raises this
        if isinstance(error.__cause__, KeyboardInterrupt):
            _exit_interrupted()
        raise


def _require_extra() -> None:
    import importlib.util

    if any(importlib.util.find_spec(needed) is None for needed in ("typer", "rich")):
        sys.exit("statehold: the command line needs an extra: pip install 'statehold[cli]'")


def _exit_rejected(error: BaseException) -> None:
    """Exit as typer does if the command line is wrong."""
    from statehold.common.exit_codes import Answer
    from statehold.ops.cli.common.output import WrongOption

    if isinstance(error, WrongOption):
        sys.stderr.write(visible(f"statehold: {error}\n"))
        sys.exit(Answer.USAGE)


def _exit_interrupted() -> NoReturn:
    from statehold.common.exit_codes import Answer  # here, because it imports all settings

    sys.exit(Answer.INTERRUPTED)  # as a shell reports SIGINT


def _name_of(error: BaseException) -> str:
    """Return the command that explains the error; the text of wrong usage is complete."""
    from statehold import errors

    kind = type(error)
    known = kind.__module__ == errors.__name__ and not isinstance(error, (errors.UsageError, errors.ToolRefused))
    return f" [statehold explain {kind.__name__}]" if known else ""


def _see_it_end(code: object) -> None:
    from statehold.common.exit_codes import Exit
    from statehold.ops.process.hard_exit import end_now, limit_the_end

    if code == Exit.STUCK:
        end_now(Exit.STUCK)
    limit_the_end()


if __name__ == "__main__":
    main()
