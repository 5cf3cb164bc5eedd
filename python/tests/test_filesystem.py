"""Containers as a file system of fsspec."""

import errno
import json
import os
import pickle
import random
import shutil
from pathlib import Path

import fsspec
import pytest
from conftest import pack
from writer import Lane, entry

from tameike import Container, ContainerFileSystem, DamagedError, NoContainerError

STAT = ("mode", "uid", "gid")


@pytest.fixture
def fs(packed: dict[str, Path]) -> ContainerFileSystem:
    return fsspec.filesystem("tameike-agg", fo=packed["small blocks"])


@pytest.fixture
def local(tree: Path) -> fsspec.AbstractFileSystem:
    """The packed tree, for comparison."""
    return fsspec.filesystem("dir", path=str(tree), fs=fsspec.filesystem("file"))


def test_the_protocol_is_registered(fs: ContainerFileSystem, packed: dict[str, Path]) -> None:
    assert type(fs) is ContainerFileSystem
    assert fsspec.filesystem("tameike-agg", fo=str(packed["small blocks"])).info("order")["type"] == "directory"
    with pytest.raises(ValueError, match="no container"):
        fsspec.filesystem("tameike-agg")
    with pytest.raises(NoContainerError):
        fsspec.filesystem("tameike-agg", fo="/nowhere")


def test_listings_equal_those_of_the_tree(fs: ContainerFileSystem, local: fsspec.AbstractFileSystem) -> None:
    for path in ("", "order", "order/a", "names", "many/03", "empty", "links"):
        expected = {info["name"]: info for info in local.ls(path, detail=True)}
        found = {info["name"]: info for info in fs.ls(path, detail=True)}
        assert found.keys() == expected.keys()
        assert sorted(fs.ls(path, detail=False)) == sorted(expected)
        for name, info in found.items():
            assert info["type"] == expected[name]["type"] or info["islink"], name
            if info["type"] == "file":
                assert info["size"] == expected[name]["size"]
            if not info["islink"]:
                assert [info[field] for field in STAT] == [expected[name][field] for field in STAT]
                assert info["mtime"] == pytest.approx(expected[name]["mtime"])
    assert fs.ls("order/a.txt", detail=False) == ["order/a.txt"]
    for path in ("nowhere", "order/nowhere", "order/a.txt/x"):
        with pytest.raises(FileNotFoundError):
            fs.ls(path)
        with pytest.raises(FileNotFoundError):
            fs.info(path)


def test_find_and_glob_equal_those_of_the_tree(fs: ContainerFileSystem, local: fsspec.AbstractFileSystem) -> None:
    for path in ("", "order", "order/a", "many"):
        for options in ({}, {"withdirs": True}, {"maxdepth": 1}, {"maxdepth": 2, "withdirs": True}):
            expected = [name for name in local.find(path, **options) if name]
            assert fs.find(path, **options) == sorted(expected), (path, options)
    assert list(fs.find("order", detail=True)) == fs.find("order")
    for pattern in ("many/*/000?.bin", "order/a*", "order/**/x", "**/x", "large/[0-9]*"):
        assert fs.glob(pattern) == local.glob(pattern), pattern
    assert fs.find("large/1") == ["large/1"]
    assert fs.du("many") == local.du("many")
    assert [at for at, _, _ in fs.walk("order")] == [
        "order",
        "order/a",
        "order/a/b",
        "order/a!",
        "order/a-b",
        "order/a0",
    ]


def test_info_exists_and_isdir(fs: ContainerFileSystem) -> None:
    assert fs.exists("order/a/x") and fs.exists("order") and fs.exists("") and fs.exists("links/file")
    assert not fs.exists("order/y") and not fs.exists("links/dangling")
    assert fs.lexists("links/dangling")
    assert fs.isdir("order") and fs.isdir("links/directory") and fs.isdir("") and not fs.isdir("order/a/x")
    assert fs.isfile("order/a/x") and fs.isfile("links/file") and not fs.isfile("order") and not fs.isfile("nowhere")
    assert fs.info("links/file")["type"] == "file" and fs.info("links/file")["size"] == 65536
    assert fs.info("links/directory")["type"] == "directory"
    assert fs.info("links/directory")["destination"] == "../order"
    assert fs.info("tameike-agg://order/a/x") == fs.info("/order/a/x") == fs.info("order/a/x")
    assert fs.info("pipe")["type"] == "other" and fs.info("links/loop")["type"] == "other"
    assert fs.modified("order").timestamp() == pytest.approx(1_700_000_000.123456)
    assert fs.ukey("order/a/x") != fs.ukey("order/a!/x")


def test_times_out_of_range_of_datetime_are_errors(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    for seconds in (-62_135_596_800, -1, 253_402_300_799, -62_135_596_801, 1 << 62):
        lane.append(0, entry(str(seconds).encode(), lane.version(), 0, seconds=seconds), b"")
    fs = ContainerFileSystem(str(tmp_path / "c"))
    modified = {name: fs.modified(name).isoformat() for name in ("-62135596800", "-1", "253402300799")}
    assert list(modified.values()) == [
        "0001-01-01T00:00:00+00:00",
        "1969-12-31T23:59:59+00:00",
        "9999-12-31T23:59:59+00:00",
    ]
    for name in ("-62135596801", str(1 << 62)):
        with pytest.raises(OSError, match=f"{name} seconds") as raised:
            fs.modified(name)
        assert raised.value.errno == errno.EOVERFLOW
        assert fs.cat(name) == b""


def test_directories_without_entries_are_found(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    for path in ("a/b/c", "a/b!/c", "d/e/f"):
        lane.put(path, b"1")
    fs = ContainerFileSystem(str(tmp_path / "c"))
    assert fs.ls("", detail=False) == ["a", "d"]
    assert fs.isdir("a") and fs.isdir("a/b") and fs.info("a/b")["type"] == "directory"
    assert fs.find("", withdirs=True) == ["a", "a/b", "a/b!", "a/b!/c", "a/b/c", "d", "d/e", "d/e/f"]
    assert fs.glob("a/*/c") == ["a/b!/c", "a/b/c"]


def test_content_is_read_whole_and_in_ranges(fs: ContainerFileSystem, tree: Path) -> None:
    for path in ("large/65536", "large/9500000", "large/holes", "order/a/x", "large/0"):
        data = (tree / path).read_bytes()
        assert fs.cat_file(path) == data
        for start, end in ((0, 10), (5, None), (-7, None), (-9, -3), (None, -1), (10**7, None), (9, 3), (100, 10**8)):
            assert fs.cat_file(path, start=start, end=end) == data[start:end]
        assert fs.head(path, 20) == data[:20] and fs.tail(path, 20) == data[-20:]
        with fs.open(path) as file:
            assert file.read() == data
    assert fs.read_block("order/a/x", 6, 100) == b"a/x"
    data = (tree / "large/3000001").read_bytes()
    rng = random.Random(5)
    starts = [rng.randrange(len(data)) for _ in range(40)]
    ends = [start + rng.randrange(100_000) for start in starts]
    assert fs.cat_ranges(["large/3000001"] * 40, starts, ends) == [data[s:e] for s, e in zip(starts, ends)]
    one, other = fs.cat_ranges(["nowhere", "order/a/x"], 0, 5)
    assert isinstance(one, FileNotFoundError) and other == b"order"
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["nowhere"], 0, 5, on_error="raise")
    assert fs.cat("order/a*/x") == {f"order/{d}/x": f"order/{d}/x".encode() for d in ("a", "a!", "a-b", "a0")}
    with fs.open("order/a.txt", "r") as file:
        assert file.read() == "order/a.txt"


def test_get_copies_files(fs: ContainerFileSystem, tree: Path, tmp_path: Path) -> None:
    fs.get("order", str(tmp_path / "order"), recursive=True)
    for path in ("a/x", "a!/x", "a/b/x", "a.txt"):
        assert (tmp_path / "order" / path).read_bytes() == (tree / "order" / path).read_bytes()


def test_damaged_files_are_not_reported_as_missing(packed: dict[str, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(packed["small blocks"], tmp_path / "copy")
    with (copy / "index").open("r+b") as index:
        index.seek(100)
        index.write(b"\xff")
    fs = ContainerFileSystem(copy)
    for read in (
        lambda: fs.ls(""),
        lambda: fs.exists("large"),
        lambda: fs.isdir("large"),
        lambda: list(fs.walk("")),
        lambda: fs.find("", maxdepth=2),
        lambda: fs.find(""),
        lambda: fs.glob("*/1"),
        lambda: fs.info("large"),
    ):
        with pytest.raises(DamagedError, match="the index is damaged"):
            read()
    # Entries of other pages are readable.
    assert fs.cat_file("order/a/x") == b"order/a/x"


def test_changes_are_refused(fs: ContainerFileSystem) -> None:
    for change in (
        lambda: fs.open("new", "wb"),
        lambda: fs.open("order/a/x", "ab"),
        lambda: fs.pipe_file("new", b""),
        lambda: fs.touch("new"),
        lambda: fs.mkdir("new"),
        lambda: fs.makedirs("new/er"),
        lambda: fs.rm("order", recursive=True),
        lambda: fs.rm_file("order/a/x"),
        lambda: fs.rmdir("empty"),
        lambda: fs.cp_file("order/a/x", "new"),
        lambda: fs.mv("order/a/x", "new"),
    ):
        with pytest.raises(OSError, match="read-only"):
            change()
    fs.makedirs("order", exist_ok=True)


def test_urls_are_chained(packed: dict[str, Path], tree: Path) -> None:
    made = packed["small blocks"]
    with fsspec.open(f"tameike-agg://order/a/x::file://{made}") as file:
        assert file.read() == b"order/a/x"
    with fsspec.open("tameike-agg://order/a/x", "rt", fo=made) as file:
        assert file.read() == "order/a/x"
    files = fsspec.open_files(f"tameike-agg://many/0*/000?.bin::{made}")
    assert len(files) == 10
    for file in files:
        with file as content:
            assert content.read() == (tree / file.path).read_bytes()
    mapper = fsspec.get_mapper(f"tameike-agg://order::file://{made}")
    assert mapper["a/b/x"] == b"order/a/b/x" and len(mapper) == 6


def test_containers_are_read_from_any_file_system(packed: dict[str, Path], tree: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(packed["large blocks"]), "/position/c", recursive=True)
    try:
        fs = fsspec.filesystem("tameike-agg", fo="/position/c", target_protocol="memory")
        data = (tree / "large/9500000").read_bytes()
        assert fs.cat_file("large/9500000", 4_000_000, 5_000_000) == data[4_000_000:5_000_000]
        assert fsspec.open("tameike-agg://order/a/x::memory://position/c").open().read() == b"order/a/x"
        by_url = Container("memory://position/c")
        assert by_url.has_index and by_url.read_bytes("large/1048577") == (tree / "large/1048577").read_bytes()
        assert pickle.loads(pickle.dumps(by_url)).read_bytes("order/a/x") == b"order/a/x"
        by_records = ContainerFileSystem("memory://position/c", use_index=False)
        assert by_records.find("order") == fs.find("order")
    finally:
        memory.rm("/position", recursive=True)
    archive = shutil.make_archive(str(tmp_path / "c"), "zip", packed["small blocks"].parent, "small-blocks")
    with fsspec.open(f"tameike-agg://order/a/x::zip://small-blocks::file://{archive}") as file:
        assert file.read() == b"order/a/x"


def test_a_container_within_a_container_is_read(packed: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    shutil.copytree(packed["small blocks"], tmp_path / "tree" / "inner")
    outer = pack(tmp_path / "tree", tmp_path / "outer")
    with fsspec.open(f"tameike-agg://order/a/x::tameike-agg://inner::file://{outer}") as file:
        assert file.read() == b"order/a/x"


def test_names_that_are_not_utf_8_are_found(fs: ContainerFileSystem, tree: Path) -> None:
    names = [os.path.join("names", name) for name in os.listdir(tree / "names")]
    assert sorted(fs.find("names")) == sorted(names)
    for name in names:
        assert fs.cat_file(name) == os.fsencode(os.path.basename(name))


def test_pickle_and_json_round_trip(fs: ContainerFileSystem) -> None:
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat_file("order/a/x") == b"order/a/x"
    with fs.open("order/a/x") as file:
        assert file.read(3) == b"ord"
        assert pickle.loads(pickle.dumps(file)).read() == b"er/a/x"
    once_more = fsspec.AbstractFileSystem.from_json(fs.to_json())
    assert json.loads(fs.to_json())["protocol"] == "tameike-agg"
    assert once_more.cat_file("order/a/x") == b"order/a/x"
