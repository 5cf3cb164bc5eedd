"""Content compressed by zstd."""

import random
from pathlib import Path

import pytest
from conftest import files_below, pack
from writer import CHUNK_SIZE, Lane, compressed, entry

from tameike import Container, DamagedError, DamageWarning, UnsupportedError
from tameike.codec import ZSTD, zstd


def text_of(size: int, rng: random.Random) -> bytes:
    """Compressible bytes."""
    words = [b"%d," % rng.randrange(1000) for _ in range(4)]
    return b"".join(rng.choices(words, k=size // 2))[:size]


@pytest.mark.parametrize("options", [("--block-size=64KiB", "--writers=3"), ("--block-size=4MiB", "--writers=1")])
def test_files_compressed_by_the_program_are_read(tmp_path: Path, options: tuple[str, ...]) -> None:
    rng, root = random.Random(3), tmp_path / "tree"
    root.mkdir()
    for number, size in enumerate([0, 1, 50, 3000, 16_384, 70_000, CHUNK_SIZE, CHUNK_SIZE + 1, 3_000_000]):
        (root / f"text{number}").write_bytes(text_of(size, rng))
        (root / f"mixed{number}").write_bytes(text_of(size // 2, rng) + rng.randbytes(size // 3) + bytes(size // 6))
        (root / f"noise{number}").write_bytes(rng.randbytes(size))
    made = pack(root, tmp_path / "made", "--compress", *options)
    allocated = sum(file.stat().st_blocks for file in made.iterdir()) * 512
    # How much of its blocks each writer leaves unused depends on their order.
    assert allocated < 0.95 * sum(map(len, files_below(root).values()))
    for use_index in (True, False):
        container = Container(made, use_index=use_index)
        assert {item.path: container.read_bytes(item.path) for item in container.walk()} == files_below(root)
    reader, data = container.reader("mixed8"), (root / "mixed8").read_bytes()
    for _ in range(100):
        offset, size = rng.randrange(len(data)), rng.choice([1, 5000, 300_000, 2_000_000])
        assert reader.read_at(offset, size) == data[offset : offset + size]


def test_chunks_are_compressed_individually(tmp_path: Path) -> None:
    rng = random.Random(1)
    lane = Lane(tmp_path / "c")
    # A mix of compressed and uncompressed chunks.
    data = text_of(CHUNK_SIZE, rng) + bytes(CHUNK_SIZE) + rng.randbytes(10_000) + text_of(70_000, rng)
    files = {
        "together": data[: CHUNK_SIZE + 100],
        "plain": rng.randbytes(3000),
        "tiny": b"x",
        "empty": b"",
        "zeros": bytes(2 * CHUNK_SIZE),
    }
    for path, content in files.items():
        lane.put(path, content, codec=ZSTD, encode=compressed)
    head = lane.append(1, b"", data, codec=ZSTD, encode=compressed)
    mixed = rng.randbytes(20_000)
    other = lane.append(1, b"", bytes(CHUNK_SIZE) + mixed, codec=ZSTD, encode=compressed)
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
            offset, size = rng.randrange(len(content) + 1), rng.choice([1, 5000, CHUNK_SIZE, 600_000])
            assert reader.read_at(offset, size) == content[offset : offset + size]


@pytest.mark.parametrize(
    ("encode", "why"),
    [
        (lambda data: zstd.compress(data + b"x"), "no zstd frame of 4000 bytes"),
        (lambda data: zstd.compress(data[:-1]), "no zstd frame of 4000 bytes"),
        # Much larger than the chunk.
        (lambda data: zstd.compress(bytes(1 << 23)), "no zstd frame of 4000 bytes"),
        (lambda data: zstd.compress(data) * 2, "no zstd frame of 4000 bytes"),
        (lambda data: zstd.compress(data) + b"\0", "no zstd frame of 4000 bytes"),
        (lambda data: zstd.compress(data)[:-1], "no zstd frame of 4000 bytes"),
        # Without the end of the frame's checksum.
        (
            lambda data: zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})[:-1],
            "no zstd frame of 4000",
        ),
        (lambda data: b"\x50\x2a\x4d\x18\1\0\0\0x", "no zstd frame of 4000 bytes"),
        (lambda data: b"no frame", "no zstd frame:"),
        (lambda data: b"", "no zstd frame of 4000 bytes"),
    ],
)
def test_a_chunk_that_is_not_one_frame_of_its_size_is_damaged(tmp_path: Path, encode: object, why: str) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"abcd" * 1000, codec=ZSTD, encode=encode)
    lane.put("other", b"abcd" * 1000, codec=ZSTD, encode=compressed)
    lane.sync()
    lane.put("last", b"")
    container = Container(tmp_path / "c")
    with pytest.raises(DamagedError, match=rf"file: .*its chunk 0 cannot be decompressed: it is {why}"):
        container.read_bytes("file")
    assert container.read_bytes("other") == b"abcd" * 1000


def test_decompression_is_limited_to_the_chunk_size(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    frame = zstd.compress(bytes(1 << 25))
    lane.put("bomb", b"a" * CHUNK_SIZE, codec=ZSTD, encode=lambda _: frame)
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
        with pytest.raises(DamagedError, match="no zstd frame of 262144 bytes"):
            Container(tmp_path / "c").read_bytes("bomb")
    assert given == [CHUNK_SIZE + 1]


def test_flipped_bits_of_a_frame_are_reported(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    position = lane.put("file", b"abcd" * 1000, codec=ZSTD, encode=compressed)
    lane.sync()
    lane.put("last", b"")
    whole = lane.path.read_bytes()
    head = 64 + len(entry(b"file", 1, 4000)) + 8
    at = lane.position(position) + head
    lane.write_at(at + 7, bytes([whole[at + 7] ^ 1]))
    with pytest.raises(DamagedError, match="the checksum of its chunk 0 is wrong"):
        Container(tmp_path / "c").read_bytes("file")
    # An unsynced record with the damage is not valid.
    lane = Lane(tmp_path / "other")
    lane.put("file", b"abcd" * 1000, codec=ZSTD, encode=compressed)
    lane.write_at(lane.position(head + 7), b"\0")
    with pytest.warns(DamageWarning, match="file is incomplete"):
        assert not Container(tmp_path / "other").exists("file")


@pytest.mark.parametrize("is_durable", [True, False])
def test_an_invalid_frame_is_damage_if_it_was_durable(tmp_path: Path, is_durable: bool) -> None:
    lane = Lane(tmp_path / "c")
    lane.append(0, entry(b"file", 1, 3), b"old")
    lane.sync()
    lane.append(0, entry(b"file", 2, 400), b"abcd" * 100, codec=ZSTD, encode=lambda data: data[1:])
    if is_durable:
        lane.sync()
        lane.put("last", b"")
        with pytest.raises(DamagedError, match="cannot be decompressed"):
            Container(tmp_path / "c").read_bytes("file")
        return
    with pytest.warns(DamageWarning, match="file is incomplete"):
        assert Container(tmp_path / "c").read_bytes("file") == b"old"


def test_chunks_larger_than_their_data_are_damage(tmp_path: Path) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"abcd", codec=ZSTD, encode=zstd.compress)
    with pytest.warns(DamageWarning, match="its sizes contradict each other"):
        assert not Container(tmp_path / "c").exists("file")


def test_a_missing_zstd_module_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = Lane(tmp_path / "c")
    lane.put("file", b"abcd" * 1000, codec=ZSTD, encode=compressed)
    lane.put("tiny", b"abcd", codec=ZSTD, encode=compressed)
    monkeypatch.setattr("tameike.codec.zstd", None)
    container = Container(tmp_path / "c")
    assert container.damage == [] and container.read_bytes("tiny") == b"abcd"
    with pytest.raises(UnsupportedError, match=r"file: .*zstd, which is not installed: `pip install tameike\[zstd\]`"):
        container.read_bytes("file")
