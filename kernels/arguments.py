"""Numbers on command lines, for argparse."""

import argparse
import re
import sys
from collections.abc import Callable


def whole_number(least: int = 1, most: int = 2**31 - 1) -> Callable[[str], int]:
    """A `type` for argparse that reads a whole number from `least` to `most`, in plain digits."""

    def read(text: str) -> int:
        # Python itself refuses to read numbers of thousands of digits, with a traceback.
        digits = re.fullmatch(rf"[0-9]{{1,{len(str(most))}}}", text)
        if not digits or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to {most}"
            )
        return int(text)

    return read


def real_number(
    least: float, most: float = sys.float_info.max, *, allowed: str, example: str
) -> Callable[[str], float]:
    """A `type` for argparse that reads a number from `least` to `most`.

    allowed, example: end the message about another one.
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a number {allowed}, such as {example}"
            )
        return value

    return read
