"""Files of which a container has all but the content: that is in a file beside the subfiles, on its way to the shared
directory.

Their entries have no bytes, and in the place of a link's target what packed files have there:

    number u64 | ctime: seconds i64, nanoseconds u32 | place: nothing (inside), 1 (outside), 2 (outside, all of it)
"""

import errno
import struct
from typing import NamedTuple, Optional

from .entry import FileKind, Node, encoded, printable
from .errors import damaged
from .source import Directory, NotRegularError, Source

PREFIX = "out."
_IDENTITY = struct.Struct("<QqIB")
_OUTSIDE, _LEAVING = 1, 2


class Outside(NamedTuple):
    """Where the content of a file is."""

    #: The file in the container's directory.
    name: str
    #: All of it is there, until it comes to its place in the shared directory.
    is_leaving: bool

    def open(self, directory: Directory, path: str) -> Source:
        """The content of the file ``path``, as it is now."""
        try:
            directory.status(self.name)
            return directory.open(self.name)
        except FileNotFoundError:
            if self.is_leaving:
                why = "it is no more in the container, but at its place in the directory that this belongs to"
                raise FileNotFoundError(errno.ENOENT, why, path) from None
            why = (
                f"its content is not in {self.name}: it has come to its place since the container was opened, or is "
                "lost, and `tameike recover` brings what its job still has"
            )
            raise damaged(f"{printable(path)}: {why}") from None

    def status(self, directory: Directory) -> Optional[tuple[int, Optional[int]]]:
        """Size and time of the content, as `Directory.status`; ``None`` when it cannot be found."""
        try:
            return directory.status(self.name)
        except (FileNotFoundError, NotRegularError):
            return None


def outside_of(node: Node) -> Optional[Outside]:
    """Where the content of a file is; ``None`` when it is in the container."""
    identity = encoded(node.target)
    if node.kind != FileKind.FILE or node.size > 0 or len(identity) != _IDENTITY.size:
        return None
    number, _, _, place = _IDENTITY.unpack(identity)
    if place not in (_OUTSIDE, _LEAVING):
        return None
    return Outside(f"{PREFIX}{number:016x}", place == _LEAVING)
