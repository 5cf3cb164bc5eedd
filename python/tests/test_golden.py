"""Golden containers of format 1, which the tests of the program share."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fsspec
import pytest

from tameike import Container, DamagedError
from tameike.codec import zstd

GOLDEN = Path(__file__).parents[2] / "crates/container/tests/golden"


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


@pytest.mark.parametrize("use_index", [True, False])
def test_external_content_of_golden_containers_is_read(use_index: bool) -> None:
    container = Container(GOLDEN / "container-1-packed", use_index=use_index)
    assert not container.damage
    sizes = {entry.path: entry.size for entry in container.walk()}
    assert sizes == {"arrived": 0, "inside": 300, "leaving": 10_000, "lost": 0, "outside": 300_000}
    for path in ("inside", "leaving", "outside"):
        assert container.read_bytes(path) == content(sizes[path])
        assert container.node(path).size == container.reader(path).node.size == sizes[path]
        assert container.reader(path).read_at(sizes[path] - 7, 100) == content(sizes[path])[-7:]
    with pytest.raises(FileNotFoundError, match="moved to the file's own path"):
        container.open("arrived")
    with pytest.raises(DamagedError, match="tameike recover"):
        container.open("lost")


def test_truncated_external_content_is_an_error(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(GOLDEN / "container-1-packed", tmp_path / "copy"))
    reader = Container(copy).reader("outside")
    os.truncate(copy / "out.fedcba9876543210", 200_000)
    assert reader.read_at(0, 200_000) == content(200_000)
    with pytest.raises(DamagedError, match="shorter"):
        reader.read_at(0, 300_000)
    # A refresh shows the current sizes of external content.
    container = Container(copy)
    (copy / "out.0000000000000003").unlink()
    container.refresh()
    assert [entry.size for entry in container.children()] == [0, 300, 0, 0, 200_000]


def test_external_content_must_be_a_regular_file(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(GOLDEN / "container-1-packed", tmp_path / "copy"))
    pipe, link = copy / "out.0000000000000003", copy / "out.fedcba9876543210"
    pipe.unlink()
    os.mkfifo(pipe)
    link.unlink()
    link.symlink_to("/etc/passwd")
    container = Container(copy)
    assert [entry.size for entry in container.walk()] == [0, 300, 0, 0, 0]
    for path in ("leaving", "outside"):
        with pytest.raises(OSError, match="no regular file"):
            container.open(path)


def test_fsspec_reads_external_content() -> None:
    url = f"tameike-agg://outside::file://{GOLDEN / 'container-1-packed'}"
    with fsspec.open(url) as file:
        assert file.read() == content(300_000)
    fs = fsspec.filesystem("tameike-agg", fo=GOLDEN / "container-1-packed")
    assert fs.info("leaving")["size"] == fs.size("/leaving") == 10_000
    assert fs.cat_file("outside", start=-5) == content(300_000)[-5:]
