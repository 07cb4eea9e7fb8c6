"""A cipher's key stream, from the library `cryptography`."""

from __future__ import annotations

from dprmt._validation import ParameterError, how_to_install

KEY_BYTES = 32
ROOM = 15  # bytes that a buffer must have beyond what is written to it


class CipherStream:
    """AES-256 in counter mode, from counter 0: the encryption of zeros."""

    __slots__ = ("__encryptor", "__zeros")

    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        except ImportError:
            raise ParameterError("secure", True, f"False, or install it: {how_to_install('secure')}") from None
        self.__zeros = b""
        self.__encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()

    def read(self, count: int) -> bytes:
        """The next bytes of the stream."""
        return self.__encryptor.update(bytes(count))

    def fill(self, buffer: memoryview) -> None:
        """Overwrite a buffer with the next bytes of the stream, except for its last 15, which the library works in."""
        count = len(buffer) - ROOM
        if len(self.__zeros) != count:
            self.__zeros = bytes(count)
        self.__encryptor.update_into(self.__zeros, buffer)
