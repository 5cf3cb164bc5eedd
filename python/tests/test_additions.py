"""Lanes with several incarnations, entries added after the index, and refreshes of readers."""

import struct
import subprocess
import threading
from pathlib import Path

import fsspec
import pytest
from conftest import pack, program
from writer import BLOCK_SIZE, FINISHED, Lane, entry

import tameike
from tameike import Container, ContainerFileSystem, DamageWarning, FileKind


def paths(container: Container) -> list[str]:
    return [entry.path for entry in container.walk()]


def close(directory: Path) -> None:
    """Writes an index, as the program does."""
    subprocess.run([program(), "agg", "verify", "--rebuild", directory], check=True, capture_output=True)


def indexed(directory: Path) -> Lane:
    """A container with one lane, which is finished and indexed."""
    lane = Lane(directory, lanes=2)
    for path in ("a", "b", "d/e/f", "d/x"):
        lane.put(path, path.encode() * 100)
    lane.finish()
    close(directory)
    return lane


def test_an_incarnation_continues_after_the_one_before(tmp_path: Path) -> None:
    lane, ends = Lane(tmp_path / "c", lanes=2), []
    for number in range(1, 6):
        assert lane.incarnation == number and lane.address % BLOCK_SIZE == 0
        lane.put("again", b"%d" % number)
        lane.put(f"of {number}", b"x" * 40_000)
        ends.append(lane.address)
        # Some incarnations do not finish.
        if number % 2:
            lane.sync()
        else:
            lane.finish()
        lane.begin()
    container = Container(tmp_path / "c")
    assert container.damage == []
    assert paths(container) == ["again", *(f"of {number}" for number in range(1, 6))]
    assert container.read_bytes("again") == b"5"
    assert container.find("again").lane == (0, 0)


def test_entries_added_after_the_index_override_it(tmp_path: Path) -> None:
    lane = indexed(tmp_path / "c")
    assert paths(Container(tmp_path / "c")) == ["a", "b", "d/x", "d/e/f"]
    lane.begin()
    # In the same lane, in another one, and in another subfile.
    for number, writer in enumerate([lane, Lane(tmp_path / "c", lane=1, lanes=2), Lane(tmp_path / "c", 7, lanes=2)]):
        writer.append(0, entry(b"a", 100 + number, 1), b"%d" % number)
        writer.append(0, entry(b"b", 1, None), b"")
        writer.append(0, entry(b"d/e/f", 50, None), b"")
        writer.append(0, entry(b"new/%d" % number, 1, 3), b"new")
        writer.append(0, entry(b"gone/%d" % number, 1, 3), b"old")
        writer.append(0, entry(b"gone/%d" % number, 2, None), b"")
        writer.append(0, entry(b"zz/never", 2, None), b"")
    container = Container(tmp_path / "c")
    assert container.has_index and container.damage == []
    assert container.read_bytes("a") == b"2"
    assert container.read_bytes("b") == b"b" * 100, "the entry is newer than its removal"
    assert paths(container) == ["a", "b", "d/x", "new/0", "new/1", "new/2"]
    names = {at: [item.name for item in container.children(at)] for at in ("", "d", "new")}
    assert names == {"": ["a", "b", "d", "new"], "d": ["x"], "new": ["0", "1", "2"]}
    for path in ("d/e", "d/e/f", "gone", "gone/1", "zz", "zz/never"):
        assert container.find(path) is None and not container.exists(path)
    assert paths(Container(tmp_path / "c", use_index=False)) == paths(container)
    # Indexed entries need no scan.
    for writer in (lane, Lane(tmp_path / "c", lane=1, lanes=2), Lane(tmp_path / "c", 7, lanes=2)):
        writer.finish()
    close(tmp_path / "c")
    closed = Container(tmp_path / "c")
    assert paths(closed) == paths(container) and not closed._shown.additions.newest
    container.refresh()
    assert paths(closed) == paths(container) and not container._shown.additions.newest


def test_indexed_lanes_are_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = indexed(tmp_path / "c")
    scanned = []
    begin = tameike.scan.LaneScan.__init__

    def noted(scan: tameike.scan.LaneScan, source: object, superblock: object, start: tameike.index.LaneEnd) -> None:
        scanned.append(start.lane)
        begin(scan, source, superblock, start)

    monkeypatch.setattr("tameike.scan.LaneScan.__init__", noted)
    container = Container(tmp_path / "c")
    container.refresh()
    assert scanned == []
    other = Lane(tmp_path / "c", lane=1, lanes=2)
    other.put("later", b"1")
    container.refresh()
    assert scanned == [(0, 1)] and container.read_bytes("later") == b"1"
    other.finish()
    container.refresh()
    container.refresh()
    assert scanned == [(0, 1)] * 2
    lane.begin()
    container.refresh()
    container.refresh()
    assert scanned == [(0, 1)] * 2 + [(0, 0)] * 2


def test_a_scan_of_small_records_takes_few_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(tmp_path / "c")
    for number in range(600):
        lane.put(f"{number}", b"1" * 5000)
    lane.finish()
    reads: list[int] = []
    read_at = tameike.source.LocalSource.read_at
    monkeypatch.setattr(
        "tameike.source.LocalSource.read_at",
        lambda source, offset, size: (reads.append(size), read_at(source, offset, size))[1],
    )
    assert len(paths(Container(tmp_path / "c"))) == 600
    assert len(reads) < 70 and sum(reads) < 5_000_000, "about one of each block"


def test_refresh_shows_entries_written_meanwhile(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c", lane=1, lanes=2)
    container, fs = Container(tmp_path / "c"), ContainerFileSystem(tmp_path / "c")
    reader = None
    for number in range(1, 30):
        lane.put("again", b"%d" % number * 5000)
        lane.put(f"d/{number}", b"")
        if number % 3 == 0:
            lane.sync()
        if number % 10 == 0:
            lane.finish()
            lane.begin()
        assert container.find(f"d/{number}") is None
        container.refresh()
        assert container.read_bytes("again") == b"%d" % number * 5000
        assert container.find(f"d/{number}").kind == FileKind.FILE
        if number == 7:
            reader = container.reader("again")
        assert not fs.exists(f"d/{number}")
        fs.invalidate_cache()
        assert fs.cat_file("again") == b"%d" % number * 5000 and len(fs.ls("d")) == number
    assert container.damage == []
    assert reader is not None and reader.read_at(0, 5) == b"77777"


def test_added_entries_are_found_on_any_file_system(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    lane = indexed(tmp_path / "c")
    lane.begin()
    memory.put(str(tmp_path / "c"), "/live/c", recursive=True)
    try:
        container = Container("memory://live/c")
        lane.put("later", b"1" * 10_000)
        Lane(tmp_path / "c", 3, lanes=2).put("elsewhere", b"2")
        memory.put(str(tmp_path / "c") + "/", "/live/c/", recursive=True)
        assert container.find("later") is None
        container.refresh()
        assert container.read_bytes("later") == b"1" * 10_000
        assert container.read_bytes("elsewhere") == b"2"
    finally:
        memory.rm("/live", recursive=True)


def test_an_incomplete_record_is_read_once_it_is_complete(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("before", b"x")
    lane.sync()
    half = lane.put("half", b"3" * 12_000)
    lane.put("behind", b"y")
    whole = lane.path.read_bytes()
    lane.write_at(lane.position(half) + 5000, bytes(4000))
    with pytest.warns(DamageWarning, match="half is incomplete") as warned:
        container = Container(tmp_path / "c")
    assert warned[0].filename == __file__
    assert container.find("half") is None and container.read_bytes("behind") == b"y"
    # A warning is issued once.
    container.refresh()
    assert len(container.damage) == 1
    lane.path.write_bytes(whole)
    container.refresh()
    assert container.read_bytes("half") == b"3" * 12_000 and container.damage == []
    # The same with a record whose end is missing.
    partial = lane.put("partial", b"4" * 9000)
    whole = lane.path.read_bytes()
    lane.path.write_bytes(whole[: lane.position(partial)])
    container.refresh()
    assert container.find("partial") is None and container.damage == []
    lane.path.write_bytes(whole[: lane.position(partial) + 30])
    with pytest.warns(DamageWarning, match="it is incomplete"):
        container.refresh()
    # A warning is issued once.
    for end in (64, 100, 5000):
        lane.path.write_bytes(whole[: lane.position(partial) + end])
        container.refresh()
        assert container.find("partial") is None and len(container.damage) == 1
    lane.path.write_bytes(whole)
    container.refresh()
    assert container.read_bytes("partial") == b"4" * 9000 and container.damage == []


@pytest.mark.parametrize("first", ["head", "data"])
def test_records_that_arrive_late_are_found(tmp_path: Path, first: str) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("before", b"x")
    places = {"head": (40, 20), "data": (5000, 4000)}
    for name in (first, *(places.keys() - {first})):
        at, size = places[name]
        start = lane.position(lane.put(name, name.encode() * 3000))
        lane.put(f"behind {name}", b"y")
        places[name] = start + at, size
    whole = lane.path.read_bytes()
    for at, size in places.values():
        lane.write_at(at, bytes(size))
    with pytest.warns(DamageWarning):
        container = Container(tmp_path / "c")
    assert paths(container) == ["before", "behind data", "behind head"] and len(container.damage) == 3
    # The missing parts arrive one by one.
    at, size = places[first]
    lane.write_at(at, whole[at : at + size])
    container.refresh()
    assert container.read_bytes(first) == first.encode() * 3000
    lane.path.write_bytes(whole)
    container.refresh()
    assert len(paths(container)) == 5 and container.damage == []


def test_bytes_after_an_end_record_are_ignored(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"1")
    lane.finish()
    lane.write_at(lane.position(lane.address), b"garbage" * 20)
    assert Container(tmp_path / "c").damage == []


def test_refresh_warns_of_new_damage(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("first", b"1")
    container = Container(tmp_path / "c")
    position = lane.put("second", b"2" * 100)
    lane.put("third", b"3")
    lane.write_at(lane.position(position) + 70, b"\xff")
    with pytest.warns(DamageWarning, match="2 places are damaged") as warned:
        container.refresh()
    assert warned[0].filename == __file__
    assert paths(container) == ["first", "third"]


def test_a_removal_after_an_incomplete_record_is_not_valid(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("old", b"content")
    lane.sync()
    moved = lane.put("new", b"content")
    lane.remove("old")
    assert paths(Container(tmp_path / "c")) == ["new"]
    lane.write_at(lane.position(moved), b"lost")
    with pytest.warns(DamageWarning):
        container = Container(tmp_path / "c")
    assert paths(container) == ["old"] and container.read_bytes("old") == b"content"
    assert any("old may have reappeared" in damage.why for damage in container.damage)


@pytest.mark.parametrize("crashes", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_torn_record_stays_invalid_after_the_next_incarnation(tmp_path: Path, crashes: bool, has_index: bool) -> None:
    lane = Lane(tmp_path / "c")
    lane.append(0, entry(b"file", 1, 3), b"old")
    lane.sync()
    if has_index:
        close(tmp_path / "c")
    torn = lane.append(0, entry(b"file", 2, 12_000), b"3" * 12_000)
    lane.write_at(lane.position(torn) + 6000, bytes(4000))
    lane.begin()
    lane.put("other", b"z")
    lane.sync()
    lane.put("another", b"z")
    if not crashes:
        lane.finish()
    with pytest.warns(DamageWarning, match="file is incomplete"):
        container = Container(tmp_path / "c")
    assert {path: container.read_bytes(path) for path in paths(container)} == {
        "another": b"z",
        "file": b"old",
        "other": b"z",
    }
    container.refresh()
    assert container.read_bytes("file") == b"old" and len(container.damage) == 1


@pytest.mark.parametrize("number", [0, 1, 2, 3, 77, FINISHED, 1 | FINISHED, 2 | FINISHED, 0xFFFF_FFFF])
def test_a_damaged_incarnation_yields_no_wrong_data(tmp_path: Path, number: int) -> None:
    lane = indexed(tmp_path / "c")
    lane.begin()
    lane.put("later", b"1")
    lane.set_in_header(number)
    container = Container(tmp_path / "c")
    # A full scan finds the hidden entries.
    is_hidden = number in (1 | FINISHED, 1)
    assert container.exists("later") != is_hidden
    assert container.read_bytes("a") == b"a" * 100 and container.damage == []
    assert Container(tmp_path / "c", use_index=False).read_bytes("later") == b"1"
    container.refresh()
    assert container.exists("later") != is_hidden


def test_a_subfile_truncated_within_its_header_has_no_lanes(tmp_path: Path) -> None:
    indexed(tmp_path / "c")
    for size in (129, 128, 100, 0):
        with (tmp_path / "c" / "00000001.data").open("wb") as file:
            file.write(b"\x11" * size)
        for use_index in (True, False):
            container = Container(tmp_path / "c", use_index=use_index)
            assert len(paths(container)) == 4 and container.damage == []


def test_headers_of_many_lanes_take_several_blocks(tmp_path: Path) -> None:
    lanes = 20_000
    last = Lane(tmp_path / "c", lane=lanes - 1, lanes=lanes)
    assert last.position(0) == (2 + lanes - 1) * BLOCK_SIZE
    last.put("far", b"away")
    last.finish()
    close(tmp_path / "c")
    last.begin()
    last.put("farther", b"off")
    container = Container(tmp_path / "c")
    assert container.has_index
    assert {path: container.read_bytes(path) for path in paths(container)} == {"far": b"away", "farther": b"off"}


def test_a_container_of_the_program_is_appended_to(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(b"1")
    made = pack(tmp_path / "tree", tmp_path / "made", "--block-size=64KiB", "--writers=2")
    superblock = struct.unpack("<4sHHQIIII", (made / "container").read_bytes())
    container = Container(made)
    lane = Lane(made, container=superblock[3], lanes=superblock[5])
    assert lane.incarnation == 2
    lane.append(0, entry(b"file", 1 << 62, 1), b"2")
    container.refresh()
    assert container.read_bytes("file") == b"2"


@pytest.mark.parametrize("use_index", [True, False])
def test_refresh_follows_a_compaction(tmp_path: Path, use_index: bool) -> None:
    lane = indexed(tmp_path / "c")
    container = Container(tmp_path / "c", use_index=use_index)
    lane.begin()
    lane.append(0, entry(b"a", 1000, None), b"")
    lane.put("later", b"1")
    lane.finish()
    # Copy all entries to a new subfile, and remove the old one.
    new = Lane(tmp_path / "c", 1, lanes=2)
    for item in Container(tmp_path / "c").walk():
        data = Container(tmp_path / "c").read_bytes(item.path)
        new.append(0, entry(item.path.encode(), item.version, len(data)), data)
    new.finish()
    lane.path.unlink()
    (tmp_path / "c" / "index").unlink()
    close(tmp_path / "c")
    container.refresh()
    assert container.damage == [] and container.has_index == use_index
    assert paths(container) == ["b", "later", "d/x", "d/e/f"]
    assert container.read_bytes("b") == b"b" * 100 and container.read_bytes("later") == b"1"


def test_an_open_retries_if_a_subfile_is_removed_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = indexed(tmp_path / "c")
    listed = [[lane.path.name, "00000005.data", "index"]] * 2
    names = tameike.source.LocalDirectory.names
    monkeypatch.setattr(
        "tameike.source.LocalDirectory.names", lambda directory: listed.pop() if listed else names(directory)
    )
    assert len(paths(Container(tmp_path / "c"))) == 4 and listed == []
    monkeypatch.setattr("tameike.source.LocalDirectory.names", lambda _: ["00000005.data"])
    with pytest.raises(FileNotFoundError):
        Container(tmp_path / "c")


def test_threads_read_during_a_refresh(tmp_path: Path) -> None:
    lane = indexed(tmp_path / "c")
    lane.begin()
    container, wrong, is_over = Container(tmp_path / "c"), [], threading.Event()

    def read() -> None:
        try:
            while not is_over.is_set():
                for path in paths(container):
                    if container.read_bytes(path) != path.encode() * 100:
                        wrong.append(path)
        except Exception as error:
            wrong.append(error)

    def refresh() -> None:
        while not is_over.is_set():
            container.refresh()

    threads = [threading.Thread(target=what) for what in (read, read, refresh, refresh)]
    for thread in threads:
        thread.start()
    for number in range(150):
        lane.put(f"n/{number}", f"n/{number}".encode() * 100)
    is_over.set()
    for thread in threads:
        thread.join()
    container.refresh()
    assert wrong == [] and len(paths(container)) == 154 and container.damage == []
