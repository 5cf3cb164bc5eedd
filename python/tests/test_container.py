"""What a container gives is what was packed: names, attributes, and every byte."""

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


def test_all_of_it_is_there_and_nothing_else(container: Container, tree: Path) -> None:
    expected = files_below(tree)
    found = {entry.path: entry for entry in container.walk()}
    assert found.keys() == expected.keys()
    for path, data in expected.items():
        if data is not None:
            assert container.read_bytes(path) == data, path


def test_a_directory_lists_what_it_has_in_the_order_of_bytes(container: Container, tree: Path) -> None:
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


def test_attributes_are_those_of_the_files(container: Container, tree: Path) -> None:
    for path in files_below(tree):
        told, is_so = container.find(path), os.lstat(tree / path)
        assert told is not None
        assert told.st_mode == is_so.st_mode, path
        assert (told.mtime_ns, told.uid, told.gid) == (is_so.st_mtime_ns, is_so.st_uid, is_so.st_gid)
        if told.is_file():
            assert told.size == is_so.st_size
    early = container.node("large/1")
    assert (early.kind, early.mode, early.mtime_ns) == (FileKind.FILE, 0o604, -1_500_000_001)
    pipe = container.find("pipe")
    assert pipe is not None and pipe.kind == FileKind.FIFO and stat.S_ISFIFO(pipe.st_mode)


def test_reads_from_anywhere_bring_what_the_file_has(container: Container, tree: Path) -> None:
    chance = random.Random(1)
    for path in sorted(str(file.relative_to(tree)) for file in (tree / "large").iterdir()):
        data = (tree / path).read_bytes()
        reader = container.reader(path)
        with container.open(path) as file:
            assert (file.size, file.name, file.seek(0, io.SEEK_END)) == (len(data), path, len(data))
            for _ in range(120):
                offset = chance.randrange(len(data) + 2)
                size = chance.choice([0, 1, 100, 8192, 70_000, 300_000, 5_000_000])
                expected = data[offset : offset + size]
                assert reader.read_at(offset, size) == expected
                assert file.seek(offset) == offset
                assert file.read(size) == expected
                assert file.tell() == offset + len(expected)
            file.seek(0)
            assert file.read() == data


def test_a_file_is_a_file_of_python(container: Container) -> None:
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


def test_what_is_no_file_is_not_opened(container: Container) -> None:
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


def test_paths_are_found_however_they_are_written(container: Container) -> None:
    for path in ("order/a/x", "/order/a/x", "order//a/./x", "order/a/../a/x", b"order/a/x", Path("order/a/x")):
        assert container.read_bytes(path) == b"order/a/x"
    for path in ("..", "../order", "order/../../order/a/x"):
        assert container.find(path) is None
    assert container.read_bytes(b"names/\xff\xfe no text \x80") == b"\xff\xfe no text \x80"


def test_its_version_is_that_of_the_program() -> None:
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


def test_pages_and_subfiles_that_are_kept_have_a_bound(
    packed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
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
