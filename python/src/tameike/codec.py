"""How chunks are kept: the one place where compression is undone."""

from .errors import unsupported

#: Chunks are kept as they are.
PLAIN = 0


def decode(codec: int, kept: bytes, size: int) -> bytes:
    """The ``size`` bytes that a chunk has, of those that are kept of it and were found to be right."""
    if codec == PLAIN:
        return kept
    raise unsupported(
        f"{size} bytes are kept by codec {codec}, which this version does not know: install a later tameike"
    )
