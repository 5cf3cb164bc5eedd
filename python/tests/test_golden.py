"""Containers of format 1 that the program's own tests keep: what they have is read byte for byte."""

from __future__ import annotations

from pathlib import Path

import pytest

from tameike import Container
from tameike.codec import zstd

GOLDEN = Path(__file__).parents[2] / "crates/store/tests/golden"


def content(size: int) -> bytes:
    return bytes(at * at % 251 for at in range(size))


FILES = {
    "d/empty": b"",
    "d/small": content(300),
    "large": content(10_000),
    "\udcfe not UTF-8": content(1),
    "added": b"after the index",
}


@pytest.mark.parametrize("use_index", [True, False])
@pytest.mark.parametrize("name", ["container-1", "container-1-zstd"])
def test_golden_containers_are_read(name: str, use_index: bool) -> None:
    if name.endswith("zstd") and zstd is None:
        pytest.skip("no zstd")
    container = Container(GOLDEN / name, use_index=use_index)
    assert not container.damage
    for path, expected in FILES.items():
        with container.open(path) as file:
            assert file.read() == expected
    assert container.readlink("d/link") == "../\udcff"
    assert container.xattrs("d/small") == {"user.unit": b"\x00\xff"}
    assert not container.exists("removed")
    assert container.node("d/small").mode == 0o640
