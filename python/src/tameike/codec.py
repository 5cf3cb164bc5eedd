"""How chunks are kept: the one place where compression is undone."""

from types import ModuleType
from typing import Optional

from .errors import FormatError, unsupported

#: Chunks are kept as they are.
PLAIN = 0
#: A chunk that became smaller is one frame of zstd, which has exactly its data. Others are kept as they are.
ZSTD = 1
KNOWN = (PLAIN, ZSTD)


def _zstd() -> Optional[ModuleType]:
    """The module of that name, of Python itself from 3.14 on; ``None`` when it is not installed."""
    try:
        from compression import zstd
    except ImportError:
        try:
            from backports import zstd
        except ImportError:
            return None
    return zstd  # type: ignore[no-any-return, unused-ignore]


zstd = _zstd()


def decode(kept: bytes, size: int) -> bytes:
    """The ``size`` bytes that a chunk has, of those that are kept of it and were found to be right.

    `FormatError` when these are no ``size`` bytes, however many they would be.
    """
    if len(kept) == size:
        return kept
    if zstd is None:
        raise unsupported(f"{size} bytes are kept by zstd, which is not installed: `pip install tameike[zstd]`")
    frame = zstd.ZstdDecompressor()
    try:
        # One more than there should be, to see the frame's end.
        data: bytes = frame.decompress(kept, max_length=size + 1)
    except zstd.ZstdError as error:
        raise FormatError(f"it is no frame of zstd: {error}") from error
    if len(data) != size or not frame.eof or frame.unused_data:
        raise FormatError(f"it is no frame of {size} bytes")
    return data
