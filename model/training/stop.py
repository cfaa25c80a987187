"""Stopping on a signal: the handler only remembers it, the training loop acts on it.

Saving inside a signal handler can hang in a collective or catch the model in the middle of a step,
so SIGINT, SIGTERM and SIGUSR1 set a flag that `StopAtStep` looks at between steps. This module
imports nothing heavy: install the handlers first, so that a signal during the imports of torch and
Lightning is remembered too. A second Ctrl-C quits at once.

Exit codes after a stop are 128 + the signal's number: 130 for SIGINT, 143 for SIGTERM, 138 for
SIGUSR1.
"""

import os
import signal
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequested(Exception):
    """Training stopped on request; the checkpoint is saved. `step` is the last finished step."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Stop:
    """Remembers the first stop signal while it is used as a context manager.

    Entering installs the handlers, leaving restores the earlier ones.

    Attributes:
        signal_number: the signal that came first, None while there is none.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._process = os.getpid()
        self._interrupts = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._previous = {number: signal.getsignal(number) for number in SIGNALS}
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    @property
    def exit_code(self) -> int:
        """What the process should exit with after a stop; 0 without one."""
        return 0 if self.signal_number is None else 128 + self.signal_number

    def install(self) -> None:
        """Sets the handlers, again when another library has put its own in their place."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def restore(self) -> None:
        """Puts the earlier handlers back, for work after training that may just be interrupted."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def request(self, signal_number: int) -> None:
        """Requests a stop as if the signal had come."""
        if self.signal_number is None:
            self.signal_number = signal_number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a forked data worker: its parent decides
        self._interrupts += number == signal.SIGINT
        if self._interrupts == 2:
            os._exit(128 + number)
        if self.signal_number is None:
            name = signal.Signals(number).name
            again = "; Ctrl-C again quits at once" if number == signal.SIGINT else ""
            # Not print: the signal may have interrupted another one. 2 is stderr.
            os.write(2, f"\n{name}: saving after this step, then stopping{again}\n".encode())
        self.request(number)
