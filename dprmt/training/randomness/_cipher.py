"""A cipher's key stream, from the library `cryptography`."""

from __future__ import annotations

from typing import Any

from dprmt._validation import ParameterError, how_to_install

KEY_BYTES = 32
ROOM = 15  # bytes that a buffer must have beyond what is written to it
_NONCE_BYTES = 12
_ZEROS = memoryview(bytes(1 << 17))  # few enough to stay in a cache with the results
_PART = 2**36 - 32  # bytes under a nonce, at most: 32 bits count its blocks, from 2


class CipherStream:
    """AES-256 in counter mode: the encryption of zeros, under nonce 0, 1, 2, ….

    Counter mode is GCM's here, which libraries have faster code for; its tags are not asked for. A block's counter is
    the nonce and the block's number under it, so that none comes twice. What is left of a nonce and too short for what
    is asked for is left out.
    """

    __slots__ = ("__encryptor", "__key", "__left", "__nonce")

    def __init__(self, key: bytes) -> None:
        self.__key, self.__nonce = key, -1
        self.__start()

    def read(self, count: int) -> bytes:
        """Return the next bytes of the stream."""
        parts = [min(_PART, count - first) for first in range(0, count, _PART)]
        return b"".join([self.__with(part).update(bytes(part)) for part in parts])

    def fill(self, buffer: memoryview) -> None:
        """Overwrite a buffer with the next bytes of the stream, except for its last 15, which the library works in."""
        count = len(buffer) - ROOM
        for first in range(0, count, len(_ZEROS)):
            part = min(len(_ZEROS), count - first)
            self.__with(part).update_into(_ZEROS[:part], buffer[first : first + part + ROOM])

    def __with(self, count: int) -> Any:
        """Return an encryptor that has so many bytes left."""
        if self.__left < count:
            self.__start()
        self.__left -= count
        return self.__encryptor

    def __start(self) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise ParameterError("secure", True, f"False, or install it: {how_to_install('secure')}") from None
        self.__nonce, self.__left = self.__nonce + 1, _PART
        mode = modes.GCM(self.__nonce.to_bytes(_NONCE_BYTES, "big"))
        self.__encryptor = Cipher(algorithms.AES256(self.__key), mode).encryptor()
