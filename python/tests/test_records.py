"""Containers without an index: versions, removals, unsynced records, later formats."""

import random
from pathlib import Path

import pytest
from writer import CHUNK_SIZE, CONTAINER, Lane, entry, superblock

import tameike
from tameike import Container, DamagedError, DamageWarning, NoContainerError, UnsupportedError


def paths(container: Container) -> list[str]:
    return [entry.path for entry in container.walk()]


def test_the_newest_version_is_valid_in_any_lane(tmp_path: Path) -> None:
    one, other = Lane(tmp_path / "c", 0), Lane(tmp_path / "c", 1)
    one.append(0, entry(b"file", 7, 3), b"new")
    one.append(0, entry(b"gone", 8, 3), b"old")
    other.append(0, entry(b"file", 6, 3), b"old")
    other.append(0, entry(b"gone", 9, None), b"")
    other.append(0, entry(b"back", 1, None), b"")
    one.append(0, entry(b"back", 2, 4), b"here")
    # Among equal versions, the highest lane and then the highest address is valid.
    one.append(0, entry(b"same", 5, 1), b"1")
    other.append(0, entry(b"same", 5, 1), b"2")
    other.append(0, entry(b"same", 5, 1), b"3")
    container = Container(tmp_path / "c")
    assert not container.has_index and container.damage == []
    assert {path: container.read_bytes(path) for path in paths(container)} == {
        "back": b"here",
        "file": b"new",
        "same": b"3",
    }


def test_blocks_of_lanes_alternate_in_a_subfile(tmp_path: Path) -> None:
    rng, files = random.Random(6), {}
    lanes = [Lane(tmp_path / "c", number % 2, lane=number // 2, lanes=3) for number in range(6)]
    for number in range(120):
        # Some lanes are much shorter than others.
        lane = rng.choice(lanes[: 1 + number % 6])
        files[f"f{number:03}"] = rng.randbytes(rng.choice([0, 70, 5000, 40_000]))
        lane.put(f"f{number:03}", files[f"f{number:03}"])
    container = Container(tmp_path / "c")
    assert container.damage == []
    assert {path: container.read_bytes(path) for path in paths(container)} == files


def test_directories_need_no_entries(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    for path in ("a/b/c/file", "a/b!/file", "a/b-c", "a!/x", "d/e", "top"):
        lane.put(path, path.encode())
    lane.append(0, entry(b"d", lane.version(), 0, kind=1), b"")
    container = Container(tmp_path / "c")
    listed = {at: [entry.path for entry in container.children(at)] for at in ("", "a", "a/b", "a/b/c", "d")}
    assert listed == {
        "": ["a", "a!", "d", "top"],
        "a": ["a/b", "a/b!", "a/b-c"],
        "a/b": ["a/b/c"],
        "a/b/c": ["a/b/c/file"],
        "d": ["d/e"],
    }
    for path in ("", "a", "a!", "a/b", "a/b!", "a/b/c", "d"):
        found = container.find(path)
        assert found is not None and found.is_dir() and found.path == path
        assert container.node(path).kind == tameike.FileKind.DIRECTORY
    for path in ("a/b/", "b", "a/b/d", "a/c", "to", "a/b-"):
        assert (container.find(path) is not None) == path.endswith("/")
    assert [entry.path for entry in container.walk("a/b")] == ["a/b/c/file"]


def test_extents_are_assembled_and_holes_are_zeros(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    one = lane.append(1, b"", b"0123456789")
    other = lane.append(1, b"", b"abcdefghij")
    extents = [(3, 4, 0, 0, one, 2), (7, 1, 0, 0, other, 9), (20, 5, 0, 0, other, 0)]
    lane.append(0, entry(b"file", 1, 30, extents=extents), b"")
    container = Container(tmp_path / "c")
    expected = b"\0\0\0" + b"2345" + b"j" + bytes(12) + b"abcde" + bytes(5)
    reader = container.reader("file")
    for start in range(32):
        for end in range(start, 33):
            assert reader.read_at(start, end - start) == expected[start:end]


def test_unsynced_entries_are_valid_if_they_are_complete(tmp_path: Path) -> None:
    def written(name: str) -> Lane:
        lane = Lane(tmp_path / name)
        lane.put("file", b"old" * 1000)
        lane.sync()
        lane.put("file", b"new" * 1000)
        return lane

    written("whole")
    assert Container(tmp_path / "whole").read_bytes("file") == b"new" * 1000
    lane = written("lost")
    with lane.path.open("r+b") as file:
        file.seek(-1000, 2)
        file.write(bytes(100))
    with pytest.warns(DamageWarning, match="file is incomplete") as warned:
        container = Container(tmp_path / "lost")
    assert warned[0].filename == __file__
    assert container.read_bytes("file") == b"old" * 1000
    assert len(container.damage) == 1
    # A durable record is valid by its head; a read finds the damage.
    lane.sync()
    lane.put("later", b"")
    container = Container(tmp_path / "lost")
    assert container.damage == []
    with pytest.raises(DamagedError, match=r"^\[Errno 5\] file: .*address \d+ in lane 0 of subfile 0 of .*/lost"):
        container.read_bytes("file")


def test_messages_are_printable_for_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tameike.codec.zstd", None)
    lane = Lane(tmp_path / "c")
    lane.append(0, entry(b"\xff\x1b[2J", 1, 3), b"abc")
    lane.append(0, entry(b"\xff", 2, 3), b"abc", codec=1, encode=lambda chunk: chunk[:2])
    lane.sync()
    lane.put("last", b"")
    with lane.path.open("r+b") as file:
        file.seek(file.read().index(b"abc"))
        file.write(b"abd")
    container = Container(tmp_path / "c")
    with pytest.raises(DamagedError) as damaged:
        container.read_bytes(b"\xff\x1b[2J")
    with pytest.raises(UnsupportedError) as unsupported:
        container.read_bytes(b"\xff")
    for error in (damaged, unsupported):
        assert str(error.value).isprintable()


def test_records_after_damage_are_found_and_the_damage_is_reported(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    places = {name: lane.put(name, name.encode() * 100) for name in ("a", "b", "c")}
    with lane.path.open("r+b") as file:
        file.seek(64 * 1024 + places["b"] + 8)
        file.write(b"\xff")
    with pytest.warns(DamageWarning, match=f"2 places are damaged.*{places['b']} in lane 0 of subfile 0"):
        container = Container(tmp_path / "c")
    assert paths(container) == ["a", "c"]
    assert "1 records before it are missing" in container.damage[1].why


def test_complete_records_of_a_crashed_writer_are_read(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("first", b"1" * 1000)
    last = lane.put("last", b"2" * 1000)
    whole = lane.path.read_bytes()
    lane.path.write_bytes(whole[: 64 * 1024 + last])
    container = Container(tmp_path / "c")
    assert (paths(container), container.damage) == (["first"], [])
    # An incomplete record is reported, as it cannot be distinguished from damage.
    for end in (last + 10, last + 64, last + 100, last + 1000):
        lane.path.write_bytes(whole[: 64 * 1024 + end])
        with pytest.warns(DamageWarning, match="it is incomplete"):
            container = Container(tmp_path / "c")
        assert (paths(container), [damage.address for damage in container.damage]) == (["first"], [last])


def test_records_of_another_container_are_ignored(tmp_path: Path) -> None:
    Lane(tmp_path / "c").put("mine", b"mine")
    other = Lane(tmp_path / "other", 1, container=CONTAINER + 1)
    other.put("theirs", b"theirs")
    other.path.rename(tmp_path / "c" / other.path.name)
    with pytest.warns(DamageWarning, match="written for another position"):
        assert paths(Container(tmp_path / "c")) == ["mine"]


def test_an_unknown_codec_is_reported(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("compressed", b"x" * 100, codec=3, encode=lambda chunk: chunk[:9])
    piece = lane.append(1, b"", b"abc", codec=2)
    lane.append(0, entry(b"pieces", 1, 3, extents=[(0, 3, 0, 0, piece, 0)]), b"")
    lane.finish()
    with pytest.warns(DamageWarning, match=r"2 places are damaged.*its codec is unknown"):
        container = Container(tmp_path / "c")
    assert paths(container) == ["pieces"]
    with pytest.raises(DamagedError, match=r"pieces: .*its codec is unknown"):
        container.read_bytes("pieces")


def test_contradicting_sizes_are_damage(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.append(0, entry(b"short", 1, 4), b"abc")
    piece = lane.append(1, b"", b"abc")
    lane.append(0, entry(b"beyond", 2, 9, extents=[(0, 9, 0, 0, piece, 0)]), b"")
    lane.append(0, entry(b"nowhere", 3, 9, extents=[(0, 9, 5, 0, 0, 0)]), b"")
    lane.append(0, entry(b"outside", 4, 9, extents=[(0, 9, 0, 1, 0, 0)]), b"")
    lane.append(0, entry(b"odd", 5, 9, extents=[(0, 9, 0, 0, piece + 64, 0)]), b"")
    lane.sync()
    lane.put("last", b"")
    container = Container(tmp_path / "c")
    for path, why in (
        ("short", "its size differs from that of its content"),
        ("beyond", "shorter than the entry says"),
        ("nowhere", "the subfile is missing"),
        ("outside", "the address is invalid"),
        ("odd", "does not begin with the magic number"),
    ):
        with pytest.raises(DamagedError, match=f"{path}: .*{why}"):
            container.read_bytes(path)


def test_circular_links_are_errors(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.link("a", "b/x")
    lane.link("b", "a/y")
    lane.link("up", "d/../../..")
    lane.put("d/file", b"")
    container = Container(tmp_path / "c")
    with pytest.raises(OSError, match="a"):
        container.open("a")
    assert container.find("up/file") is None
    assert not container.exists("up")


def test_directories_that_are_no_containers_are_refused_with_the_reason(tmp_path: Path) -> None:
    for nothing in (tmp_path, tmp_path / "nowhere", tmp_path / "c" / "container"):
        with pytest.raises(NoContainerError, match="has no file `container`"):
            Container(nothing)
    (tmp_path / "c").mkdir()
    file = tmp_path / "c" / "container"
    short = [(content, "too short") for content in (b"", b"TMK", superblock()[:20])]
    for content, why in ((b"\7" * 32, "has another format"), *short):
        file.write_bytes(content)
        with pytest.raises(NoContainerError, match=why):
            Container(tmp_path / "c")
    file.write_bytes(superblock(version=2))
    with pytest.raises(UnsupportedError, match="format 2: use a later version"):
        Container(tmp_path / "c")
    for content, error in (
        (superblock()[:-1] + b"\0", DamagedError),
        (superblock(lanes=0), NoContainerError),
        (superblock(lanes=(1 << 16) + 1), NoContainerError),
    ):
        file.write_bytes(content)
        with pytest.raises(error):
            Container(tmp_path / "c")
    file.write_bytes(superblock())
    assert paths(Container(tmp_path / "c")) == []


def test_a_record_of_a_later_format_is_reported(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"", version=2)
    with pytest.warns(DamageWarning, match="its format is unknown"):
        assert paths(Container(tmp_path / "c")) == []


def test_the_chunk_size_equals_that_of_the_format() -> None:
    assert tameike.record.CHUNK_SIZE == CHUNK_SIZE
