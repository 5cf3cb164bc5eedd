"""Reads Tameike's containers: many small files in a few large ones, as ``tameike agg create`` makes them.

    import tameike

    container = tameike.Container("results.tmk")
    for entry in container.children("run-7"):
        print(entry.path, entry.size)
    with container.open("run-7/log") as file:
        print(file.readline())

fsspec knows containers by ``tameike-agg://``, and so do pandas, xarray, zarr and whatever else opens files by it.
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
