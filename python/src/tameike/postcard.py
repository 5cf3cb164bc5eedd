"""Decoder of postcard, as far as containers use it: variable-length numbers, options, and bytes.

Invalid input raises `FormatError` and nothing else. No value is larger than the input.
"""

from .errors import FormatError


class Decoder:
    """Decodes consecutive values, from ``at`` on."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    def unsigned(self, bits: int) -> int:
        """A number of at most ``bits`` bits: 7 per byte, low ones first, the top bit set if more follow."""
        data, at, value, shift = self.data, self.at, 0, 0
        while True:
            if at >= len(data):
                raise FormatError("it ends too early")
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise FormatError("a number in it is too long")
        if value >> bits:
            raise FormatError("a number in it is too large")
        self.at = at
        return value

    def signed(self, bits: int) -> int:
        """A signed number ``n``, encoded as ``(n << 1) ^ (n >> bits - 1)``."""
        value = self.unsigned(bits)
        return (value >> 1) ^ -(value & 1)

    def boolean(self) -> bool:
        """A byte that is 0 or 1."""
        if self.at >= len(self.data):
            raise FormatError("it ends too early")
        byte = self.data[self.at]
        if byte > 1:
            raise FormatError("a boolean in it is neither 0 nor 1")
        self.at += 1
        return byte == 1

    def is_some(self) -> bool:
        """True if an option has a value, which follows."""
        return self.boolean()

    def sized(self) -> bytes:
        """Bytes, preceded by their length."""
        length = self.unsigned(64)
        end = self.at + length
        if end > len(self.data):
            raise FormatError("it ends too early")
        value = self.data[self.at : end]
        self.at = end
        return value

    def is_at_end(self) -> bool:
        return self.at == len(self.data)
