"""The declarations of the library agree with tameike.h."""

import ctypes
import re
from typing import Any

from conftest import ROOT

from tameike import dsm, library, win

C_TYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "const char *": ctypes.c_char_p,
    "tameike_dsm *": ctypes.c_void_p,
    "tameike_dsm **": ctypes.POINTER(ctypes.c_void_p),
    "tameike_win *": ctypes.c_void_p,
    "tameike_win **": ctypes.POINTER(ctypes.c_void_p),
    "void *": ctypes.c_void_p,
    "const void *": ctypes.c_void_p,
    "size_t": ctypes.c_size_t,
    "ssize_t": ctypes.c_ssize_t,
    "uint64_t *": ctypes.POINTER(ctypes.c_uint64),
    "tameike_dsm_counters *": ctypes.POINTER(library.RegionCounters),
}


def header() -> str:
    """The header without comments and line breaks."""
    text = (ROOT / "crates/capi/include/tameike.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return " ".join(re.sub(r"//.*|^#.*", "", text, flags=re.MULTILINE).split())


def c_type(declared: str) -> Any:
    """The type of a declaration `TYPE NAME`."""
    found = re.fullmatch(r"(.*?)\s*(\**)\s*\w+", declared.strip())
    assert found, declared
    return C_TYPES[" ".join(filter(None, found.groups()))]


def test_functions_are_those_of_the_header() -> None:
    prototypes = re.findall(r"([\w ]+?[\s*]+)(tameike_(?:dsm|win)_\w+)\(([^)]*)\);", header())
    declared = {
        name: (c_type(f"{result} {name}"), tuple(map(c_type, arguments.split(","))))
        for result, name, arguments in prototypes
    }
    assert len(declared) >= 38 and {"tameike_dsm_fetch_add", "tameike_win_fetch_add"} <= set(declared)
    assert declared == library.FUNCTIONS


def test_structures_are_those_of_the_header() -> None:
    found = re.search(r"typedef struct {([^}]*)} tameike_dsm_counters;", header())
    assert found
    fields = [field.strip() for field in found[1].split(";") if field.strip()]
    assert [(field.split()[-1], c_type(field)) for field in fields] == list(library.RegionCounters._fields_)
    assert [name for name, _ in library.RegionCounters._fields_] == list(dsm.Counters.__dataclass_fields__)


def test_constants_are_those_of_the_header() -> None:
    text = (ROOT / "crates/capi/include/tameike.h").read_text()
    values = dict(re.findall(r"#define TAMEIKE_DSM_(\w+) (\d+)", text))
    assert values == {"MPROTECT": str(dsm._MPROTECT), "ONE_WRITER": str(dsm._ONE_WRITER)}


def test_constants_of_windows_are_those_of_the_header() -> None:
    text = (ROOT / "crates/capi/include/tameike.h").read_text()
    values = dict(re.findall(r"#define TAMEIKE_WIN_(\w+) (\d+)", text))
    names = {"==": "EQ", "!=": "NE", ">": "GT", ">=": "GE", "<": "LT", "<=": "LE", "set": "SET", "add": "ADD"}
    declared = {**win._COMPARISONS, **win._OPERATIONS}
    assert values == {names[word]: str(value) for word, value in declared.items()}
