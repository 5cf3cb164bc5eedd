"""Decoders: encoded values round-trip, and garbage raises format errors only."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import writer
from hypothesis import example, given
from hypothesis import strategies as st

from tameike import entry, index, record
from tameike.errors import FormatError
from tameike.geometry import LaneId, Superblock
from tameike.postcard import Decoder
from tameike.record import Head, Position

names = st.binary(min_size=1, max_size=255).filter(lambda name: entry.is_path(name))
extents = st.lists(st.tuples(*[st.integers(0, 1 << 20)] * 6), max_size=5)


@given(st.integers(0, (1 << 64) - 1))
def test_numbers_round_trip(number: int) -> None:
    decoder = Decoder(writer.unsigned(number))
    assert decoder.unsigned(64) == number and decoder.is_at_end()


@given(st.integers(-(1 << 63), (1 << 63) - 1))
def test_signed_numbers_round_trip(number: int) -> None:
    assert Decoder(writer.signed(number)).signed(64) == number


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (b"", 16),
        (b"\x80", 16),
        (b"\xff\xff\x04", 16),
        (b"\x80\x80\x80\x00", 16),
        (b"\xff" * 4 + b"\x10", 32),
        (b"\x80" * 5 + b"\x00", 32),
        (b"\xff" * 9 + b"\x02", 64),
        (b"\x80" * 10 + b"\x00", 64),
    ],
)
def test_oversized_numbers_are_refused(data: bytes, bits: int) -> None:
    with pytest.raises(FormatError):
        Decoder(data).unsigned(bits)


@given(st.lists(names, min_size=1, max_size=5), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 63) - 1))
def test_entries_round_trip(path: list[bytes], version: int, size: int) -> None:
    joined = b"/".join(path)
    decoded = entry.decode(writer.entry(joined, version, size, kind=2, target=b"\xff"))
    assert decoded.node is not None
    assert (decoded.path, decoded.version, decoded.node.size, decoded.node.target) == (joined, version, size, "\udcff")
    assert decoded.node.mtime_ns == 1_700_000_000_000_000_005
    assert entry.decode(writer.entry(joined, version, None)).node is None


@given(extents, st.integers(0, 1 << 40))
def test_only_ascending_extents_are_accepted(pieces: list[Any], size: int) -> None:
    encoded = writer.entry(b"file", 1, size, extents=pieces)
    ends = [0, *(start + length for start, length, *_ in pieces)]
    is_possible = all(start >= end and length > 0 for (start, length, *_), end in zip(pieces, ends))
    if is_possible and ends[-1] <= size:
        decoded = entry.decode(encoded).node
        assert decoded is not None and decoded.extents is not None
        assert [(e.start, e.length, *e.lane, e.address, e.skip) for e in decoded.extents] == pieces
    else:
        with pytest.raises(FormatError):
            entry.decode(encoded)


@pytest.mark.parametrize(
    "path", [b"", b"/a", b"a/", b"a//b", b"..", b"a/../b", b"./a", b"a\0b", b"x" * 256, b"x/" * 2048 + b"x"]
)
def test_invalid_paths_are_refused(path: bytes) -> None:
    with pytest.raises(FormatError):
        entry.decode(writer.entry(path, 1, 0))


@given(st.binary(max_size=300))
@example(b"\1a\1\1" + b"\xff" * 40)
@example(writer.entry(b"a", 1, 5, extents=[])[:-1] + b"\xff" * 9 + b"\1")
def test_garbage_is_a_format_error(data: bytes) -> None:
    for decode in (entry.decode, decode_page):
        with contextlib.suppress(FormatError):
            decode(data)


@given(st.binary(max_size=60), st.integers(0, 200), st.binary(max_size=8))
def test_garbage_within_an_entry_is_a_format_error(tail: bytes, at: int, rubbish: bytes) -> None:
    data = writer.entry(b"some/path", 77, 300, extents=[(0, 100, 1, 2, 64, 0), (100, 200, 1, 2, 640, 9)])
    for changed in (data[:at] + tail, data[:at] + rubbish + data[at + len(rubbish) :]):
        with contextlib.suppress(FormatError):
            entry.decode(changed)


@given(st.binary(min_size=64, max_size=300), st.booleans())
def test_garbage_is_no_record(data: bytes, begins_as_one: bool) -> None:
    if begins_as_one:
        data = b"TREC\1\0" + data[6:]
    assert not isinstance(record.decode(data, Position(1, LaneId(0, 0), 0)), Head)


def test_each_flipped_bit_of_a_head_is_detected(tmp_path: Path) -> None:
    lane = writer.Lane(tmp_path / "c")
    lane.put("some/path", b"content")
    data = lane.path.read_bytes()[writer.BLOCK_SIZE :]
    position = Position(writer.CONTAINER, LaneId(0, 0), 0)
    head = record.decode(data, position)
    assert isinstance(head, Head)
    for bit in range(head.size * 8):
        turned = bytearray(data)
        turned[bit // 8] ^= 1 << bit % 8
        assert not isinstance(record.decode(bytes(turned), position), Head), bit


@given(st.integers(12, 23), st.integers(1, 8), st.integers(0, 8), st.integers(0, 1 << 40), st.integers(0, 1 << 30))
def test_addresses_map_to_distinct_offsets(shift: int, lanes: int, lane: int, address: int, size: int) -> None:
    superblock = Superblock(1, 1 << shift, lanes)
    lane %= lanes
    assert superblock.offset(lane, address + 1) > superblock.offset(lane, address)
    assert lanes == 1 or superblock.offset((lane + 1) % lanes, address) != superblock.offset(lane, address)
    end = superblock.address_end(lane, size)
    assert end == 0 or superblock.offset(lane, end - 1) < size
    assert superblock.offset(lane, end) >= size


def decode_page(data: bytes) -> None:
    page = index.Page(data)
    for number in range(len(page.keys)):
        page.entry(number)
