"""Errors of containers. Each is an ``OSError`` with an errno, except `FormatError` of decoders."""

import errno


class ContainerError(OSError):
    """An error of a container."""


class NoContainerError(ContainerError):
    """The directory is no container (``EINVAL``)."""


class UnsupportedError(ContainerError):
    """The container needs a later version or a package that is not installed; the message names it (``ENOTSUP``)."""


class DamagedError(ContainerError):
    """Bytes are damaged (``EIO``). None of them were returned."""


class DamageWarning(UserWarning):
    """Records beyond the index are damaged: some files may be missing or outdated."""


class FormatError(ValueError):
    """Bytes are no encoded value. Callers of decoders report damage."""


def no_container(message: str) -> NoContainerError:
    return NoContainerError(errno.EINVAL, message)


def unsupported(message: str) -> UnsupportedError:
    return UnsupportedError(errno.ENOTSUP, message)


def damaged(message: str) -> DamagedError:
    return DamagedError(errno.EIO, message)
