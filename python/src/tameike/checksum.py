"""CRC-32C, by google-crc32c. No other module uses that package."""

from google_crc32c import extend as _extend
from google_crc32c import value as _value


def crc32c(data: bytes, *more: bytes) -> int:
    """The checksum of the concatenated bytes."""
    result: int = _value(data)
    for part in more:
        result = _extend(result, part)
    return result
