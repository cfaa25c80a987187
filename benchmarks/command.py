"""What the commands of the benchmarks share: their parser, and how they end."""

import argparse
import sys
from collections.abc import Callable
from functools import wraps

from benchmarks.saved import Refused


def parser_of(name: str, description: str) -> argparse.ArgumentParser:
    """A parser for `python -m name`.

    description: the module's docstring, shown as it is.
    """
    return argparse.ArgumentParser(
        f"python -m {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def command(main: Callable[[list[str] | None], None]) -> Callable[..., int]:
    """Makes a command that saves what it measured as it goes of `main`, which takes its arguments.

    It returns the exit code: 2 where `main` raises Refused or OSError, 130 where it is interrupted,
    each with one line on standard error.
    """

    @wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        try:
            main(arguments)
        except (Refused, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            fresh = "--fresh" in (sys.argv if arguments is None else arguments)
            again = " without --fresh" if fresh else ""
            print(f"stopped; the same command{again} continues", file=sys.stderr)
            return 130
        return 0

    return run
