"""Names, attributes and content of a container equal those of the packed tree."""

import io
import os
import random
import stat
from importlib import metadata
from pathlib import Path

import pytest
from conftest import ROOT, files_below, pack

import tameike
from tameike import Container, FileKind


def test_a_walk_returns_exactly_the_packed_files(container: Container, tree: Path) -> None:
    expected = files_below(tree)
    found = {entry.path: entry for entry in container.walk()}
    assert found.keys() == expected.keys()
    for path, data in expected.items():
        if data is not None:
            assert container.read_bytes(path) == data, path


def test_directories_are_foundin_byte_order(container: Container, tree: Path) -> None:
    for directory in ("", "names", "order", "order/a", "many/07", "links", "empty"):
        names = [entry.name for entry in container.children(directory)]
        assert names == sorted(os.listdir(tree / directory), key=os.fsencode), directory
        assert all(container.find(entry.path) == entry for entry in container.children(directory))
    for look in (container.children, container.walk):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            look("order/nowhere")
        with pytest.raises(NotADirectoryError):
            look("order/a.txt")
    assert [entry.path for entry in container.walk("order/a")] == ["order/a/b", "order/a/x", "order/a/b/x"]
    assert [entry.path for entry in container.walk("links/twice")] == ["order/a/b/x"]


def test_attributes_equal_those_of_the_files(container: Container, tree: Path) -> None:
    for path in files_below(tree):
        found, status = container.find(path), os.lstat(tree / path)
        assert found is not None
        assert found.st_mode == status.st_mode, path
        assert (found.mtime_ns, found.uid, found.gid) == (status.st_mtime_ns, status.st_uid, status.st_gid)
        if found.is_file():
            assert found.size == status.st_size
    early = container.node("large/1")
    assert (early.kind, early.mode, early.mtime_ns) == (FileKind.FILE, 0o604, -1_500_000_001)
    pipe = container.find("pipe")
    assert pipe is not None and pipe.kind == FileKind.FIFO and stat.S_ISFIFO(pipe.st_mode)


def test_reads_at_any_offset_return_the_content(container: Container, tree: Path) -> None:
    rng = random.Random(1)
    for path in sorted(str(file.relative_to(tree)) for file in (tree / "large").iterdir()):
        data = (tree / path).read_bytes()
        reader = container.reader(path)
        with container.open(path) as file:
            assert (file.size, file.name, file.seek(0, io.SEEK_END)) == (len(data), path, len(data))
            for _ in range(120):
                offset = rng.randrange(len(data) + 2)
                size = rng.choice([0, 1, 100, 8192, 70_000, 300_000, 5_000_000])
                expected = data[offset : offset + size]
                assert reader.read_at(offset, size) == expected
                assert file.seek(offset) == offset
                assert file.read(size) == expected
                assert file.tell() == offset + len(expected)
            file.seek(0)
            assert file.read() == data


def test_open_files_behave_like_python_files(container: Container) -> None:
    with container.open("order/a.txt") as file:
        assert isinstance(file, io.BufferedReader)
        assert file.readable() and file.seekable() and not file.writable()
        assert io.TextIOWrapper(file).readline() == "order/a.txt"
    with pytest.raises(ValueError, match="closed"):
        file.read()
    with container.open("large/16385") as file:
        buffer = bytearray(10)
        assert file.readinto(buffer) == 10
        assert file.seek(-5, io.SEEK_END) == 16380
        assert len(file.read(100)) == 5
        with pytest.raises(ValueError, match="before the beginning"):
            file.seek(-1)


def test_links_are_followed_within_the_container(container: Container, tree: Path) -> None:
    links = {name: os.readlink(tree / "links" / name) for name in os.listdir(tree / "links")}
    assert {name: container.readlink(f"links/{name}") for name in links} == links
    assert container.read_bytes("links/file") == (tree / "large/65536").read_bytes()
    assert container.read_bytes("links/directory/a/x") == b"order/a/x"
    assert container.read_bytes("links/twice/x") == b"order/a/b/x"
    assert container.follow("links/twice/../x").path == "order/a/x"
    assert container.follow("links/twice").path == "order/a/b"
    link = container.find("links/directory")
    assert link is not None and link.is_symlink()
    assert [entry.path for entry in container.children("links/directory/a")] == ["order/a/b", "order/a/x"]
    for name in ("dangling", "outside", "absolute"):
        assert not container.exists(f"links/{name}")
        with pytest.raises(FileNotFoundError, match=name):
            container.open(f"links/{name}")
    with pytest.raises(OSError, match="loop"):
        container.open("links/loop")
    with pytest.raises(OSError, match="no symbolic link"):
        container.readlink("order")


def test_only_regular_files_are_opened(container: Container) -> None:
    with pytest.raises(FileNotFoundError, match="many/nowhere"):
        container.open("many/nowhere")
    with pytest.raises(FileNotFoundError):
        container.open("large/1/below")
    with pytest.raises(IsADirectoryError):
        container.open("many")
    with pytest.raises(IsADirectoryError):
        container.open("")
    with pytest.raises(OSError, match="no regular file"):
        container.open("pipe")


def test_paths_are_normalized(container: Container) -> None:
    for path in ("order/a/x", "/order/a/x", "order//a/./x", "order/a/../a/x", b"order/a/x", Path("order/a/x")):
        assert container.read_bytes(path) == b"order/a/x"
    for path in ("..", "../order", "order/../../order/a/x"):
        assert container.find(path) is None
    assert container.read_bytes(b"names/\xff\xfe no text \x80") == b"\xff\xfe no text \x80"


def test_the_version_equals_that_of_the_program() -> None:
    workspace = (ROOT / "Cargo.toml").read_text()
    assert f'\nversion = "{tameike.__version__}"\n' in workspace
    assert metadata.version("tameike") == tameike.__version__


def test_extended_attributes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    file = tmp_path / "tree" / "file"
    file.write_bytes(b"content")
    try:
        os.setxattr(file, "user.unit", b"\0\xff")
    except OSError:
        pytest.skip("no extended attributes on this file system")
    os.setxattr(file, "user.empty", b"")
    container = Container(pack(tmp_path / "tree", tmp_path / "made"))
    attributes = {name: value for name, value in container.xattrs("file").items() if name.startswith("user.")}
    assert attributes == {"user.unit": b"\0\xff", "user.empty": b""}


def test_caches_of_pages_and_subfiles_are_bounded(packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tameike.index.PAGES_KEPT", 1)
    monkeypatch.setattr("tameike.container.SUBFILES_KEPT", 1)
    container = Container(packed["small blocks"])
    paths = [entry.path for entry in container.walk("many") if entry.is_file()]
    for path in random.Random(3).sample(paths, 300):
        entry = container.find(path)
        assert entry is not None and len(container.read_bytes(path)) == entry.size


def test_a_lookup_reads_a_page_and_a_small_file_its_record(
    packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read_at = tameike.source.LocalSource.read_at
    monkeypatch.setattr(
        "tameike.source.LocalSource.read_at",
        lambda source, offset, size: (reads.append(size), read_at(source, offset, size))[1],
    )
    container = Container(packed["small blocks"])
    assert len(reads) == 5, "the header, the end of the index, and the headers of three subfiles"
    container.find("many/07/0007.bin")
    assert len(reads) == 6
    container.read_bytes("many/07/0007.bin")
    assert len(reads) == 7
    entry = container.find("many/07/0007.bin")
    assert entry is not None and reads[6] == entry.record_size
