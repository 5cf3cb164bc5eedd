"""External content: files whose entries are in the container, and whose content is a file beside the subfiles.

Such an entry has no content; in place of a link's target it has an identity:

    number u64 | ctime: seconds i64, nanoseconds u32 | state: nothing (inside), 1 (external), 2 (external, complete)
"""

import errno
import struct
from typing import NamedTuple, Optional

from .entry import FileKind, Node, encoded, printable
from .errors import damaged
from .source import Directory, NotRegularError, Source

PREFIX = "out."
_IDENTITY = struct.Struct("<QqIB")
_EXTERNAL, _COMPLETE = 1, 2


class ExternalContent(NamedTuple):
    """Location of external content."""

    #: The file in the container's directory.
    name: str
    #: It is complete, and may be promoted to the file's own path in the shared directory.
    is_leaving: bool

    def open(self, directory: Directory, path: str) -> Source:
        """Opens the content of the file ``path``."""
        try:
            directory.status(self.name)
            return directory.open(self.name)
        except FileNotFoundError:
            if self.is_leaving:
                why = "its content has moved to the file's own path in the shared directory: read it there"
                raise FileNotFoundError(errno.ENOENT, why, path) from None
            why = (
                f"its content is not in {self.name}: either it has moved to the file's own path in the shared "
                "directory, or it is lost; `tameike recover` restores what the job still has"
            )
            raise damaged(f"{printable(path)}: {why}") from None

    def status(self, directory: Directory) -> Optional[tuple[int, Optional[int]]]:
        """Size and mtime of the content, as `Directory.status`; ``None`` if it cannot be found."""
        try:
            return directory.status(self.name)
        except (FileNotFoundError, NotRegularError):
            return None


def external_of(node: Node) -> Optional[ExternalContent]:
    """Location of a file's external content; ``None`` if it has none."""
    identity = encoded(node.target)
    if node.kind != FileKind.FILE or node.size > 0 or len(identity) != _IDENTITY.size:
        return None
    number, _, _, state = _IDENTITY.unpack(identity)
    if state not in (_EXTERNAL, _COMPLETE):
        return None
    return ExternalContent(f"{PREFIX}{number:016x}", state == _COMPLETE)
