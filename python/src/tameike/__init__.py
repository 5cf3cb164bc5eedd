"""Reads Tameike's containers: many small files in a few large ones, as ``tameike agg create`` writes them.

    import tameike

    container = tameike.Container("results.tmk")
    for entry in container.children("run-7"):
        print(entry.path, entry.size)
    with container.open("run-7/log") as file:
        print(file.readline())

Libraries that open files by fsspec (pandas, xarray, zarr and others) read containers by ``tameike-agg://``.

Programs import two modules by themselves: `tameike.dsm` shares arrays between the nodes of a job, and `tameike.win`
gives each process memory that all others read and write.
"""

from .container import Container
from .entry import FileKind, Node
from .errors import (
    ContainerError,
    DamagedError,
    DamageWarning,
    NoContainerError,
    UnsupportedError,
)
from .filesystem import ContainerFileSystem
from .geometry import LaneId
from .index import IndexEntry
from .reader import ContainerFile, FileReader
from .scan import Damage

__version__ = "0.1.0"

__all__ = [
    "Container",
    "ContainerError",
    "ContainerFile",
    "ContainerFileSystem",
    "Damage",
    "DamageWarning",
    "DamagedError",
    "FileKind",
    "FileReader",
    "IndexEntry",
    "LaneId",
    "NoContainerError",
    "Node",
    "UnsupportedError",
]
