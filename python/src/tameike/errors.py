"""What goes wrong with a container. All of it is an ``OSError`` with its number, except what a decoder meets."""

import errno


class ContainerError(OSError):
    """Something is wrong with a container."""


class NoContainerError(ContainerError):
    """This is no container (``EINVAL``)."""


class UnsupportedError(ContainerError):
    """A later tameike made this, or by what is not installed here (``ENOTSUP``). The message tells what to install."""


class DamagedError(ContainerError):
    """Bytes are not what was written (``EIO``). None of them were given out."""


class DamageWarning(UserWarning):
    """Records that no index has are damaged: some files may be missing, or older than they should be."""


class FormatError(ValueError):
    """Bytes that are no encoded value. What calls a decoder makes damage of it."""


def no_container(message: str) -> NoContainerError:
    return NoContainerError(errno.EINVAL, message)


def unsupported(message: str) -> UnsupportedError:
    return UnsupportedError(errno.ENOTSUP, message)


def damaged(message: str) -> DamagedError:
    return DamagedError(errno.EIO, message)
