"""Decompression of chunks."""

from types import ModuleType
from typing import Optional

from .errors import FormatError, unsupported

#: Chunks are not compressed.
PLAIN = 0
#: A compressed chunk is one zstd frame with exactly its data. Others are not compressed.
ZSTD = 1
KNOWN = (PLAIN, ZSTD)


def _zstd() -> Optional[ModuleType]:
    """The zstd module, of Python 3.14 or of backports; ``None`` if neither is installed."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd  # type: ignore[no-any-return, unused-ignore]


zstd = _zstd()


def decode(stored: bytes, size: int) -> bytes:
    """The ``size`` bytes of a chunk whose stored bytes have the right checksum.

    Raises `FormatError` if they do not decode to ``size`` bytes. Never allocates more than that.
    """
    if len(stored) == size:
        return stored
    if zstd is None:
        raise unsupported(f"{size} bytes are compressed by zstd, which is not installed: `pip install tameike[zstd]`")
    frame = zstd.ZstdDecompressor()
    try:
        # One byte more than expected, to detect the end of the frame.
        data: bytes = frame.decompress(stored, max_length=size + 1)
    except zstd.ZstdError as error:
        raise FormatError(f"it is no zstd frame: {error}") from error
    if len(data) != size or not frame.eof or frame.unused_data:
        raise FormatError(f"it is no zstd frame of {size} bytes")
    return data
