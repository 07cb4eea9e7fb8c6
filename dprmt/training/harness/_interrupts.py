"""Stopping between two steps instead of within one."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class Interrupts:
    """While entered, the first SIGINT or SIGTERM only sets a flag; a second SIGINT interrupts immediately.

    Outside the main thread, where Python delivers no signals, it does nothing.
    """

    _SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked = False
        self._former: dict[int, object] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._former = {number: signal.signal(number, self._note) for number in self._SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._former.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
