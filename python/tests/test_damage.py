"""Truncated and corrupted containers: reads return no wrong byte, and report the damage."""

import contextlib
import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import opened, pack, program

from tameike import Container, ContainerError, DamagedError, UnsupportedError

#: A message with the file, the address and the lane.
NAMED = re.compile(r"^\[Errno 5\] d\d/f\d+: .* at address \d+ in lane \d+ of subfile \d+ of /.* is damaged: ")


#: A container, its files, a copy to damage, and random numbers.
Case = tuple[Path, dict[str, bytes], Path, random.Random]


@pytest.fixture
def case(small: tuple[Path, dict[str, bytes]], tmp_path: Path, seed: int) -> Case:
    made, files = small
    return made, files, shutil.copytree(made, tmp_path / "copy"), random.Random(seed)


def check(container: Container, made: Path, files: dict[str, bytes]) -> tuple[int, int]:
    """Numbers of damaged and missing files. Asserts that the others are intact."""
    whole = Container(made)
    damaged = missing = 0
    for path, data in files.items():
        try:
            assert container.read_bytes(path) == data
            assert container.node(path) == whole.node(path)
            assert container.find(path) == whole.find(path)
            with container.open(path) as file:
                file.seek(len(data) // 2)
                assert file.read(10) == data[len(data) // 2 :][:10]
        except DamagedError as error:
            assert NAMED.match(str(error)) or "the index is damaged" in str(error), str(error)
            damaged += 1
        except FileNotFoundError:
            missing += 1
    return damaged, missing


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_truncation_loses_files_and_corrupts_none(case: Case, has_index: bool) -> None:
    made, files, copy, rng = case
    subfile = rng.choice([file for file in sorted(copy.glob("*.data")) if file.stat().st_size > 100])
    size = subfile.stat().st_size
    with subfile.open("r+b") as file:
        file.truncate(rng.choice([0, rng.randrange(size), size - rng.randrange(100)]))
    if not has_index:
        (copy / "index").unlink()
    _, missing = check(opened(copy), made, files)
    assert missing == 0 or not has_index


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_flipped_bits_are_reported(case: Case, has_index: bool) -> None:
    made, files, copy, rng = case
    for _ in range(3):
        flip_a_bit(rng.choice(sorted(copy.glob("*.data"))), rng)
    if not has_index:
        (copy / "index").unlink()
    container = opened(copy)
    _, missing = check(container, made, files)
    assert missing == 0 or (not has_index and container.damage)


@pytest.mark.parametrize("name", ["index", "container"])
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_index_or_header_yields_no_wrong_data(case: Case, name: str) -> None:
    made, files, copy, rng = case
    if rng.random() < 0.7:
        flip_a_bit(copy / name, rng)
    else:
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[: rng.randrange(len(whole))])
    try:
        _, missing = check(Container(copy), made, files)
        assert missing == 0
    except (ContainerError, UnsupportedError) as error:
        assert str(copy) in str(error)
    if name == "index":
        container = Container(copy, use_index=False)
        assert check(container, made, files) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_garbage_in_any_file_raises_only_container_errors(case: Case) -> None:
    made, files, copy, rng = case
    with rng.choice(sorted(copy.iterdir())).open("r+b") as file:
        file.seek(rng.randrange(file.seek(0, 2)))
        file.write(rng.randbytes(rng.randrange(5000)))
    for use_index in (True, False):
        try:
            check(opened(copy, use_index), made, files)
        except ContainerError as error:
            assert str(copy) in str(error)


@pytest.mark.parametrize("seed", range(30))
def test_the_program_reads_the_same_files(case: Case, tmp_path: Path) -> None:
    _, files, copy, rng = case
    subfile = max(copy.glob("*.data"), key=lambda file: file.stat().st_size)
    for _ in range(rng.randrange(1, 6)):
        flip_a_bit(subfile, rng)
    with subfile.open("r+b") as file:
        size = file.seek(0, 2)
        if rng.random() < 0.5:
            file.seek(rng.randrange(size))
            file.write(bytes(rng.randrange(90_000)))
        if rng.random() < 0.3:
            file.truncate(rng.randrange(size))
    if rng.random() < 0.7:
        (copy / "index").unlink()
    back = tmp_path / "back"
    subprocess.run([program(), "agg", "extract", copy, back], check=False, capture_output=True)
    container, read = opened(copy), {}
    for path in files:
        with contextlib.suppress(DamagedError, FileNotFoundError):
            read[path] = container.read_bytes(path)
    extracted = {path: (back / path).read_bytes() for path in files if (back / path).exists()}
    assert read.keys() == extracted.keys()
    assert read == extracted


def test_valid_chunks_beside_a_damaged_one_are_readable(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(3 << 20)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(data)
    made = pack(tmp_path / "tree", tmp_path / "made", "--block-size=8MiB", "--writers=1")
    (subfile,) = made.glob("*.data")
    whole = subfile.read_bytes()
    position = whole.index(data[1 << 20 : (1 << 20) + 64])
    subfile.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
    with Container(made).open("file") as file:
        assert file.read(1 << 20) == data[: 1 << 20]
        with pytest.raises(DamagedError, match="checksum of its chunk 4 is wrong"):
            file.read(1)
        after = file.seek((1 << 20) + (256 << 10))
        assert file.read() == data[after:]


def flip_a_bit(file: Path, rng: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
