"""``libtameike.so``: finds the library, and declares its functions.

Functions are called by ctypes, which releases the GIL meanwhile. A failed call returns a negative errno.
"""

import ctypes
import errno
import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Name of the installed library.
NAME = "libtameike.so.0"
#: The variable that names the library.
VARIABLE = "TAMEIKE_LIBRARY"


class RegionCounters(ctypes.Structure):
    """``tameike_dsm_counters`` of tameike.h."""

    _fields_ = (
        ("read_faults", ctypes.c_uint64),
        ("write_faults", ctypes.c_uint64),
        ("pages_fetched", ctypes.c_uint64),
        ("pages_flushed", ctypes.c_uint64),
        ("bytes_flushed", ctypes.c_uint64),
        ("pages_dropped", ctypes.c_uint64),
        ("pages_merged", ctypes.c_uint64),
        ("barriers", ctypes.c_uint64),
        ("pages_evicted", ctypes.c_uint64),
        ("pages", ctypes.c_uint64),
        ("mechanism", ctypes.c_uint32),
    )


_REGION = ctypes.c_void_p
_NEW_REGION = ctypes.POINTER(ctypes.c_void_p)
_WINDOW = ctypes.c_void_p
_MEMORY = ctypes.c_void_p
_WORD = ctypes.POINTER(ctypes.c_uint64)
#: Arguments of accesses to elements: rank, offset, stride, memory, its stride, size and count of elements.
_ELEMENTS = (
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.c_size_t,
    _MEMORY,
    ctypes.c_size_t,
    ctypes.c_size_t,
    ctypes.c_size_t,
)

#: Result and arguments of each function, as tameike.h declares them.
FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "tameike_dsm_create": (
        ctypes.c_int,
        (ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint, _NEW_REGION),
    ),
    "tameike_dsm_attach": (ctypes.c_int, (ctypes.c_char_p, ctypes.c_uint, ctypes.c_uint, _NEW_REGION)),
    "tameike_dsm_address": (ctypes.c_void_p, (_REGION,)),
    "tameike_dsm_size": (ctypes.c_uint64, (_REGION,)),
    "tameike_dsm_flush": (ctypes.c_int, (_REGION,)),
    "tameike_dsm_update": (ctypes.c_int, (_REGION,)),
    "tameike_dsm_barrier": (ctypes.c_int, (_REGION,)),
    "tameike_dsm_lock": (ctypes.c_int, (_REGION, ctypes.c_uint32)),
    "tameike_dsm_unlock": (ctypes.c_int, (_REGION, ctypes.c_uint32)),
    "tameike_dsm_fetch_add": (
        ctypes.c_int,
        (_REGION, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)),
    ),
    "tameike_dsm_allocate": (
        ctypes.c_int,
        (_REGION, ctypes.c_uint64, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)),
    ),
    "tameike_dsm_deallocate": (ctypes.c_int, (_REGION, ctypes.c_uint64)),
    "tameike_dsm_touch": (ctypes.c_int, (_REGION, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)),
    "tameike_dsm_stats": (ctypes.c_int, (_REGION, ctypes.POINTER(RegionCounters))),
    "tameike_dsm_detach": (ctypes.c_int, (_REGION,)),
    "tameike_dsm_free": (ctypes.c_int, (_REGION,)),
    "tameike_win_create": (
        ctypes.c_int,
        (
            ctypes.c_char_p,
            ctypes.c_uint64,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.POINTER(ctypes.c_void_p),
        ),
    ),
    "tameike_win_address": (ctypes.c_void_p, (_WINDOW, ctypes.c_uint)),
    "tameike_win_size": (ctypes.c_uint64, (_WINDOW,)),
    "tameike_win_rank": (ctypes.c_uint, (_WINDOW,)),
    "tameike_win_ranks": (ctypes.c_uint, (_WINDOW,)),
    "tameike_win_put": (ctypes.c_int, (_WINDOW, ctypes.c_uint, ctypes.c_uint64, _MEMORY, ctypes.c_size_t)),
    "tameike_win_get": (ctypes.c_int, (_WINDOW, ctypes.c_uint, ctypes.c_uint64, _MEMORY, ctypes.c_size_t)),
    "tameike_win_iput": (ctypes.c_int, (_WINDOW, *_ELEMENTS)),
    "tameike_win_iget": (ctypes.c_int, (_WINDOW, *_ELEMENTS)),
    "tameike_win_put_signal": (
        ctypes.c_int,
        (
            _WINDOW,
            ctypes.c_uint,
            ctypes.c_uint64,
            _MEMORY,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_uint64,
            ctypes.c_int,
        ),
    ),
    "tameike_win_wait_until": (
        ctypes.c_int,
        (_WINDOW, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64, ctypes.c_int),
    ),
    "tameike_win_test": (ctypes.c_int, (_WINDOW, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64)),
    "tameike_win_fence": (ctypes.c_int, (_WINDOW,)),
    "tameike_win_quiet": (ctypes.c_int, (_WINDOW,)),
    "tameike_win_barrier": (ctypes.c_int, (_WINDOW,)),
    "tameike_win_fetch_add": (ctypes.c_int, (_WINDOW, ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64, _WORD)),
    "tameike_win_swap": (ctypes.c_int, (_WINDOW, ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64, _WORD)),
    "tameike_win_compare_swap": (
        ctypes.c_int,
        (_WINDOW, ctypes.c_uint, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64, _WORD),
    ),
    "tameike_win_fetch": (ctypes.c_int, (_WINDOW, ctypes.c_uint, ctypes.c_uint64, _WORD)),
    "tameike_win_detach": (ctypes.c_int, (_WINDOW,)),
    "tameike_win_free": (ctypes.c_int, (_WINDOW,)),
    "tameike_win_queue_size": (ctypes.c_uint64, (ctypes.c_uint64, ctypes.c_uint64)),
    "tameike_win_queue_init": (ctypes.c_int, (_WINDOW, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint64)),
    "tameike_win_send": (
        ctypes.c_int,
        (_WINDOW, ctypes.c_uint, ctypes.c_uint64, _MEMORY, ctypes.c_size_t, ctypes.c_int),
    ),
    "tameike_win_receive": (
        ctypes.c_ssize_t,
        (_WINDOW, ctypes.c_uint64, _MEMORY, ctypes.c_size_t, ctypes.c_int),
    ),
}


@functools.cache
def load() -> ctypes.CDLL:
    """The library, loaded once.

    The variable ``TAMEIKE_LIBRARY`` names it. Otherwise the dynamic linker searches for it, and then it is looked up
    where the program ``tameike`` on the PATH is installed. Raises `OSError` (``ELIBACC``, ``ELIBBAD``).
    """
    failures = []
    for name in _candidates():
        try:
            library = ctypes.CDLL(name)
        except OSError as failure:
            failures.append(str(failure))
        else:
            _declare(library, name)
            return library
    message = f"cannot load {NAME}: install Tameike, or name the library in {VARIABLE} ({'; '.join(failures)})"
    raise OSError(errno.ELIBACC, message)


def _candidates() -> Iterator[str]:
    named = os.environ.get(VARIABLE)
    if named:
        yield named
        return
    yield NAME
    program = shutil.which("tameike")
    if program is None:
        return
    # Installed as bin/tameike and lib/libtameike.so.0, perhaps with a link to the program.
    for directory in dict.fromkeys((Path(program).parent, Path(program).resolve().parent)):
        for path in (directory / NAME, directory.parent / "lib" / NAME):
            if path.exists():
                yield str(path)


def _declare(library: ctypes.CDLL, name: str) -> None:
    for function, (result, arguments) in FUNCTIONS.items():
        try:
            declared = getattr(library, function)
        except AttributeError:
            message = f"{name} has no function {function}: install the Tameike of this package's version"
            raise OSError(errno.ELIBBAD, message) from None
        declared.restype = result
        declared.argtypes = arguments
