"""Content that is kept by zstd."""

import random
from pathlib import Path

import pytest
from conftest import files_below, pack
from writer import CHUNK_SIZE, Lane, entry, squeezed

from tameike import Container, DamagedError, DamageWarning, UnsupportedError
from tameike.codec import ZSTD, zstd


def text_of(size: int, chance: random.Random) -> bytes:
    """Bytes that become much smaller."""
    words = [b"%d," % chance.randrange(1000) for _ in range(4)]
    return b"".join(chance.choices(words, k=size // 2))[:size]


@pytest.mark.parametrize("options", [("--block-size=64KiB", "--writers=3"), ("--block-size=4MiB", "--writers=1")])
def test_what_the_program_has_made_smaller_is_read(tmp_path: Path, options: tuple[str, ...]) -> None:
    chance, root = random.Random(3), tmp_path / "tree"
    root.mkdir()
    for number, size in enumerate([0, 1, 50, 3000, 16_384, 70_000, CHUNK_SIZE, CHUNK_SIZE + 1, 3_000_000]):
        (root / f"text{number}").write_bytes(text_of(size, chance))
        (root / f"mixed{number}").write_bytes(
            text_of(size // 2, chance) + chance.randbytes(size // 3) + bytes(size // 6)
        )
        (root / f"noise{number}").write_bytes(chance.randbytes(size))
    made = pack(root, tmp_path / "made", "--compress", *options)
    assert sum(file.stat().st_blocks for file in made.iterdir()) * 512 < 9_000_000
    for use_index in (True, False):
        container = Container(made, use_index=use_index)
        assert {told.path: container.read_bytes(told.path) for told in container.walk()} == files_below(root)
    reader, data = container.reader("mixed8"), (root / "mixed8").read_bytes()
    for _ in range(100):
        offset, size = chance.randrange(len(data)), chance.choice([1, 5000, 300_000, 2_000_000])
        assert reader.read_at(offset, size) == data[offset : offset + size]


def test_chunks_become_smaller_one_by_one(tmp_path: Path) -> None:
    chance = random.Random(1)
    lane = Lane(tmp_path / "c")
    # Some chunks are kept as they are, amid others.
    data = text_of(CHUNK_SIZE, chance) + bytes(CHUNK_SIZE) + chance.randbytes(10_000) + text_of(70_000, chance)
    files = {
        "together": data[: CHUNK_SIZE + 100],
        "plain": chance.randbytes(3000),
        "tiny": b"x",
        "empty": b"",
        "zeros": bytes(2 * CHUNK_SIZE),
    }
    for path, content in files.items():
        lane.put(path, content, codec=ZSTD, keep=squeezed)
    head = lane.append(1, b"", data, codec=ZSTD, keep=squeezed)
    mixed = chance.randbytes(20_000)
    other = lane.append(1, b"", bytes(CHUNK_SIZE) + mixed, codec=ZSTD, keep=squeezed)
    size = len(data) + CHUNK_SIZE + 15_000
    extents = [(0, len(data), 0, 0, head, 0), (len(data), CHUNK_SIZE + 15_000, 0, 0, other, 5000)]
    lane.append(0, entry(b"pieces", 99, size, extents=extents), b"")
    files["pieces"] = data + (bytes(CHUNK_SIZE) + mixed)[5000:]
    container = Container(tmp_path / "c")
    assert container.damage == [] and lane.path.stat().st_size < len(data)
    for path, content in files.items():
        assert container.read_bytes(path) == content, path
        reader = container.reader(path)
        for _ in range(60):
            offset, size = chance.randrange(len(content) + 1), chance.choice([1, 5000, CHUNK_SIZE, 600_000])
            assert reader.read_at(offset, size) == content[offset : offset + size]


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        (lambda data: zstd.compress(data + b"x"), "no frame of 4000 bytes"),
        (lambda data: zstd.compress(data[:-1]), "no frame of 4000 bytes"),
        # Much more than there may be.
        (lambda data: zstd.compress(bytes(1 << 23)), "no frame of 4000 bytes"),
        (lambda data: zstd.compress(data) * 2, "no frame of 4000 bytes"),
        (lambda data: zstd.compress(data) + b"\0", "no frame of 4000 bytes"),
        (lambda data: zstd.compress(data)[:-1], "no frame of 4000 bytes"),
        # All but the end of its own checksum.
        (
            lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})[:-1],
            "no frame of 4000",
        ),
        (lambda data: b"\x50\x2a\x4d\x18\1\0\0\0x", "no frame of 4000 bytes"),
        (lambda data: b"no frame", "no frame of zstd"),
        (lambda data: b"", "no frame of 4000 bytes"),
    ],
)
def test_what_is_not_one_frame_of_the_data_is_damaged(tmp_path: Path, keep: object, why: str) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"abcd" * 1000, codec=ZSTD, keep=keep)
    lane.put("other", b"abcd" * 1000, codec=ZSTD, keep=squeezed)
    lane.sync()
    lane.put("last", b"")
    container = Container(tmp_path / "c")
    with pytest.raises(DamagedError, match=rf"file: .*its chunk 0 cannot be read: it is {why}"):
        container.read_bytes("file")
    assert container.read_bytes("other") == b"abcd" * 1000


def test_a_frame_that_would_be_large_is_not_made_so(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    frame = zstd.compress(bytes(1 << 25))
    lane.put("bomb", b"a" * CHUNK_SIZE, codec=ZSTD, keep=lambda _: frame)
    lane.sync()
    lane.put("last", b"")
    given: list[int] = []
    real = zstd.ZstdDecompressor

    class Decompressor:
        def __init__(self) -> None:
            self.real = real()

        def decompress(self, data: bytes, max_length: int) -> bytes:
            made: bytes = self.real.decompress(data, max_length=max_length)
            given.append(len(made))
            return made

        def __getattr__(self, name: str) -> object:
            return getattr(self.real, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zstd, "ZstdDecompressor", Decompressor)
        with pytest.raises(DamagedError, match="no frame of 262144 bytes"):
            Container(tmp_path / "c").read_bytes("bomb")
    assert given == [CHUNK_SIZE + 1]


def test_turned_bits_of_a_frame_are_named(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    place = lane.put("file", b"abcd" * 1000, codec=ZSTD, keep=squeezed)
    lane.sync()
    lane.put("last", b"")
    whole = lane.path.read_bytes()
    head = 64 + len(entry(b"file", 1, 4000)) + 8
    at = lane.place(place) + head
    lane.write_at(at + 7, bytes([whole[at + 7] ^ 1]))
    with pytest.raises(DamagedError, match="the checksum of its chunk 0 is wrong"):
        Container(tmp_path / "c").read_bytes("file")
    # One that nobody has known to be safe is not believed.
    lane = Lane(tmp_path / "other")
    lane.put("file", b"abcd" * 1000, codec=ZSTD, keep=squeezed)
    lane.write_at(lane.place(head + 7), b"\0")
    with pytest.warns(DamageWarning, match="file is not all there"):
        assert not Container(tmp_path / "other").exists("file")


@pytest.mark.parametrize("is_safe", [True, False])
def test_what_is_no_frame_is_believed_when_it_was_safe(tmp_path: Path, is_safe: bool) -> None:
    lane = Lane(tmp_path / "c")
    lane.append(0, entry(b"file", 1, 3), b"old")
    lane.sync()
    lane.append(0, entry(b"file", 2, 400), b"abcd" * 100, codec=ZSTD, keep=lambda data: data[1:])
    if is_safe:
        lane.sync()
        lane.put("last", b"")
        with pytest.raises(DamagedError, match="cannot be read"):
            Container(tmp_path / "c").read_bytes("file")
        return
    with pytest.warns(DamageWarning, match="file is not all there"):
        assert Container(tmp_path / "c").read_bytes("file") == b"old"


def test_chunks_that_are_larger_than_their_data_are_none(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"abcd", codec=ZSTD, keep=zstd.compress)
    with pytest.warns(DamageWarning, match="its sizes contradict each other"):
        assert not Container(tmp_path / "c").exists("file")


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"abcd" * 1000, codec=ZSTD, keep=squeezed)
    lane.put("tiny", b"abcd", codec=ZSTD, keep=squeezed)
    monkeypatch.setattr("tameike.codec.zstd", None)
    container = Container(tmp_path / "c")
    assert container.damage == [] and container.read_bytes("tiny") == b"abcd"
    with pytest.raises(UnsupportedError, match=r"file: .*zstd, which is not installed: `pip install tameike\[zstd\]`"):
        container.read_bytes("file")
