"""Whatever is cut or turned, no wrong byte comes of it, and what is damaged is named."""

import contextlib
import random
import re
import shutil
import subprocess
import warnings
from pathlib import Path

import pytest
from conftest import pack, program

from tameike import Container, ContainerError, DamagedError, DamageWarning, UnsupportedError

#: File, place in the lane, lane.
NAMED = re.compile(r"^\[Errno 5\] d\d/f\d+: .* at address \d+ in lane \d+ of subfile \d+ of /.* is damaged: ")


def check(container: Container, made: Path, files: dict[str, bytes]) -> tuple[int, int]:
    """How many files are damaged, and how many are not there. The others are what they were when ``made`` was."""
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


def opened(path: Path) -> Container:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        return Container(path)


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_a_cut_takes_files_and_makes_none_wrong(
    small: tuple[Path, dict[str, bytes]], tmp_path: Path, seed: int, has_index: bool
) -> None:
    made, files = small
    chance, copy = random.Random(seed), shutil.copytree(made, tmp_path / "copy")
    subfile = chance.choice([file for file in sorted(copy.glob("*.data")) if file.stat().st_size > 100])
    size = subfile.stat().st_size
    with subfile.open("r+b") as file:
        file.truncate(chance.choice([0, chance.randrange(size), size - chance.randrange(100)]))
    if not has_index:
        (copy / "index").unlink()
    _, missing = check(opened(copy), made, files)
    assert missing == 0 or not has_index


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_turned_bits_are_named(
    small: tuple[Path, dict[str, bytes]], tmp_path: Path, seed: int, has_index: bool
) -> None:
    made, files = small
    chance, copy = random.Random(seed), shutil.copytree(made, tmp_path / "copy")
    for _ in range(3):
        turn_a_bit(chance.choice(sorted(copy.glob("*.data"))), chance)
    if not has_index:
        (copy / "index").unlink()
    container = opened(copy)
    _, missing = check(container, made, files)
    assert missing == 0 or (not has_index and container.damage)


@pytest.mark.parametrize("name", ["index", "container"])
@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_index_or_header_tells_nothing_wrong(
    small: tuple[Path, dict[str, bytes]], tmp_path: Path, seed: int, name: str
) -> None:
    made, files = small
    chance, copy = random.Random(seed), shutil.copytree(made, tmp_path / "copy")
    if chance.random() < 0.7:
        turn_a_bit(copy / name, chance)
    else:
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole[: chance.randrange(len(whole))])
    try:
        _, missing = check(Container(copy), made, files)
        assert missing == 0
    except (ContainerError, UnsupportedError) as error:
        assert str(copy) in str(error)
    if name == "index":
        container = Container(copy, use_index=False)
        assert check(container, made, files) == (0, 0)


@pytest.mark.parametrize("seed", range(20))
def test_rubbish_in_any_file_ends_nothing_but_the_read(
    small: tuple[Path, dict[str, bytes]], tmp_path: Path, seed: int
) -> None:
    made, files = small
    chance, copy = random.Random(seed), shutil.copytree(made, tmp_path / "copy")
    with chance.choice(sorted(copy.iterdir())).open("r+b") as file:
        file.seek(chance.randrange(file.seek(0, 2)))
        file.write(chance.randbytes(chance.randrange(5000)))
    for use_index in (True, False):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DamageWarning)
                container = Container(copy, use_index=use_index)
            check(container, made, files)
        except ContainerError as error:
            assert str(copy) in str(error)


@pytest.mark.parametrize("seed", range(30))
def test_the_program_believes_the_same(small: tuple[Path, dict[str, bytes]], tmp_path: Path, seed: int) -> None:
    made, files = small
    chance, copy = random.Random(seed), shutil.copytree(made, tmp_path / "copy")
    subfile = max(copy.glob("*.data"), key=lambda file: file.stat().st_size)
    for _ in range(chance.randrange(1, 6)):
        turn_a_bit(subfile, chance)
    with subfile.open("r+b") as file:
        size = file.seek(0, 2)
        if chance.random() < 0.5:
            file.seek(chance.randrange(size))
            file.write(bytes(chance.randrange(90_000)))
        if chance.random() < 0.3:
            file.truncate(chance.randrange(size))
    if chance.random() < 0.7:
        (copy / "index").unlink()
    subprocess.run([program(), "agg", "extract", copy, tmp_path / "back"], check=False, capture_output=True)
    container, read = opened(copy), {}
    for path in files:
        with contextlib.suppress(DamagedError, FileNotFoundError):
            read[path] = container.read_bytes(path)
    brought = {path: (tmp_path / "back" / path).read_bytes() for path in files if (tmp_path / "back" / path).exists()}
    assert read.keys() == brought.keys()
    assert read == brought


def test_a_part_that_is_whole_is_read_beside_one_that_is_not(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(3 << 20)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "file").write_bytes(data)
    made = pack(tmp_path / "tree", tmp_path / "made", "--block-size=8MiB", "--writers=1")
    (subfile,) = made.glob("*.data")
    whole = subfile.read_bytes()
    place = whole.index(data[1 << 20 : (1 << 20) + 64])
    subfile.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with Container(made).open("file") as file:
        assert file.read(1 << 20) == data[: 1 << 20]
        with pytest.raises(DamagedError, match="checksum of its chunk 4 is wrong"):
            file.read(1)
        after = file.seek((1 << 20) + (256 << 10))
        assert file.read() == data[after:]


def turn_a_bit(file: Path, chance: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    file.write_bytes(data)
