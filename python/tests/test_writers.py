"""Containers that many writers have made, life after life: the program and this package see the same in them."""

import contextlib
import random
import re
import shutil
import subprocess
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, files_below, program
from writer import FINISHED, Lane, entry, squeezed

from tameike import Container, DamagedError, DamageWarning
from tameike.codec import ZSTD

LANES = [(0, 0), (0, 2), (1, 1), (1 << 16, 0)]
DAMAGE = re.compile(r"^damage   lane (\d+) of subfile (\d+), at (\d+): (.*)$", re.M)


def opened(path: Path, use_index: bool = True) -> Container:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        return Container(path, use_index=use_index)


def looked_again(container: Container) -> Container:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        container.refresh()
    return container


def content(container: Container) -> dict[str, bytes]:
    """Files that are there and whole."""
    found = {}
    for told in container.walk():
        if not told.is_file():
            continue
        with contextlib.suppress(DamagedError):
            found[told.path] = container.read_bytes(told.path)
    return found


def agg(*arguments: object) -> str:
    done = subprocess.run([program(), "agg", *map(str, arguments)], check=False, capture_output=True, text=True)
    return done.stdout


def assert_the_program_sees_the_same(path: Path, place: Path) -> None:
    """Names and their order, what is whole, and what is damaged."""
    container = opened(path)
    assert [told.path for told in container.walk()] == agg("ls", "-r", path).splitlines()
    agg("extract", path, place)
    assert content(container) == {name: data for name, data in files_below(place).items() if data is not None}
    shutil.rmtree(place)
    damage = [(*reversed(damage.lane), damage.address) for damage in opened(path, use_index=False).damage]
    told = [tuple(map(int, match[:3])) for match in DAMAGE.findall(agg("verify", path))]
    # The program scans a lane twice where it was written meanwhile, so that only the order may differ.
    assert sorted(damage) == sorted(told)


class Story:
    """Writers that come, put, sync, end and die."""

    def __init__(self, directory: Path, chance: random.Random) -> None:
        self.directory = directory
        self.chance = chance
        self.writers: dict[tuple[int, int], Lane] = {}
        self.versions = 0
        #: What there is while nothing was lost.
        self.model: dict[str, bytes] = {}
        self.has_lost = False

    def step(self) -> None:
        place = self.chance.choice(LANES)
        writer = self.writers.get(place)
        if writer is None:
            self.writers[place] = Lane(self.directory, place[0], lane=place[1], lanes=3)
            return
        what = self.chance.random()
        if what < 0.7:
            self.put(writer, f"d{self.chance.randrange(3)}/f{self.chance.randrange(8)}")
        elif what < 0.85:
            writer.sync()
        else:
            del self.writers[place]
            if what < 0.93:
                writer.finish()

    def put(self, writer: Lane, path: str) -> None:
        self.versions += 1
        if self.chance.random() < 0.15:
            writer.append(0, entry(path.encode(), self.versions, None), b"")
            self.model.pop(path, None)
            return
        size = self.chance.choice([0, 5, 300, 5000, 16_000, 90_000])
        data = self.chance.randbytes(size)
        kept: dict[str, Any] = {}
        if self.chance.random() < 0.4:
            # Some of it becomes smaller.
            data = data[: size // 3] + (data[:9] * size)[: size - size // 3]
            kept = {"codec": ZSTD, "keep": squeezed}
        self.model[path] = data
        if len(data) <= 16_000:
            writer.append(0, entry(path.encode(), self.versions, len(data)), data, **kept)
            return
        extents = []
        for at in range(0, len(data), 20_000):
            piece = data[at : at + 20_000]
            address = writer.append(1, b"", piece, **kept)
            extents.append((at, len(piece), writer.subfile, writer.lane, address, 0))
        writer.append(0, entry(path.encode(), self.versions, len(data), extents=extents), b"")

    def close(self) -> None:
        """Writes an index, whoever may write meanwhile. What it has is not lost any more."""
        for writer in self.writers.values():
            writer.sync()
        agg("verify", "--rebuild", self.directory)
        assert (self.directory / "index").exists()

    def lose(self) -> None:
        """All die, and some of what one of them had not synced is lost with the power."""
        torn = self.chance.choice(list(self.writers.values()))
        self.writers.clear()
        start, end = torn.place(torn.safe), torn.place(torn.address)
        if torn.address > torn.safe and end - start == torn.address - torn.safe:
            self.has_lost = True
            at = self.chance.randrange(start, end)
            torn.write_at(at, bytes(min(self.chance.choice([10, 100, 4096, 30_000]), end - at)))


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test program of the library for C, where there are that and a compiler."""
    built, compiler = Path(program()).parent, shutil.which("cc")
    # Where it was built by itself, or for its own tests.
    libraries = [*built.glob("libtameike_capi.so"), *built.glob("deps/libtameike_capi.so")]
    if compiler is None or not libraries:
        pytest.skip("no compiler, or no library: `cargo build --package tameike-capi`")
    place, source = tmp_path_factory.mktemp("c"), ROOT / "crates" / "capi"
    for name in ("libtameike.so", "libtameike.so.0"):
        (place / name).symlink_to(max(libraries, key=lambda library: library.stat().st_mtime))
    flags = ["-std=gnu11", f"-I{source}/include", f"-L{place}", "-ltameike", f"-Wl,-rpath,{place}"]
    made = place / "containers"
    subprocess.run([compiler, source / "tests" / "calls" / "containers.c", "-o", made, *flags], check=True)
    return made


def of_storm(number: int) -> bytes:
    """What the program in C writes to a file."""
    start = number * 31 % 251
    return (bytes(range(251)) * 241)[start:][: number * 7919 % 60_000]


def test_what_a_program_in_c_writes_is_seen_while_it_writes(c_program: Path, tmp_path: Path) -> None:
    chance, safe = random.Random(), {}
    made = tmp_path / "c"
    subprocess.run([c_program, made, "child"], check=True)
    container = Container(made)
    for kill in range(12):
        names = [f"{kill}a", f"{kill}b"]
        writers = [
            subprocess.Popen([c_program, made, "storm", name], stdout=subprocess.PIPE, text=True) for name in names
        ]
        for name, writer in zip(names, writers):
            time.sleep(chance.uniform(0.005, 0.05))
            looked_again(container)
            writer.kill()
            said, _ = writer.communicate()
            assert "not so" not in said
            # The last line may be cut.
            lines = said[: said.rfind("\n") + 1].split()
            safe[name] = int(lines[-1]) + 1 if lines else 0
        if kill == 6:
            agg("verify", "--rebuild", made)
    assert sum(safe.values()) > 0
    for read in (looked_again(container), opened(made), opened(made, use_index=False)):
        found = content(read)
        assert found.pop("parent") == b"p" and found.pop("child") == b""
        assert found.pop("large") == bytes(100_000)
        for path, data in found.items():
            assert data == of_storm(int(path.rpartition("/")[2])), path
        for name, count in safe.items():
            assert all(f"{name}/{number}" in found for number in range(count))
    assert_the_program_sees_the_same(made, tmp_path / "back")


@pytest.mark.parametrize("what", ["calls", "child", "lone-child"])
def test_what_a_program_in_c_has_left_is_read(c_program: Path, tmp_path: Path, what: str) -> None:
    subprocess.run([c_program, tmp_path / "c", what], check=True)
    assert Container(tmp_path / "c").has_index
    assert_the_program_sees_the_same(tmp_path / "c", tmp_path / "back")


@pytest.mark.parametrize("seed", range(24))
def test_what_many_writers_have_put_is_there(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    story = Story(tmp_path / "c", chance)
    story.step()
    container = Container(tmp_path / "c")
    for number in range(chance.randrange(20, 150)):
        story.step()
        if number % 40 == 30 and chance.random() < 0.7:
            story.close()
        if number % 17 == 0:
            container.refresh()
            assert content(container) == story.model
        if number % 60 == 0:
            container = Container(tmp_path / "c", use_index=chance.random() < 0.7)
    container.refresh()
    for read in (container, Container(tmp_path / "c"), Container(tmp_path / "c", use_index=False)):
        assert content(read) == story.model
        assert read.damage == []
    assert_the_program_sees_the_same(tmp_path / "c", tmp_path / "back")


@pytest.mark.parametrize("seed", range(40))
def test_the_program_believes_the_same_of_what_was_lost_and_damaged(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    story = Story(tmp_path / "c", chance)
    story.step()
    container = Container(tmp_path / "c")
    for number in range(chance.randrange(20, 100)):
        story.step()
        if number % 40 == 30 and chance.random() < 0.5:
            story.close()
        if number % 25 == 20 and story.writers:
            story.lose()
            container = opened(tmp_path / "c", use_index=chance.random() < 0.5)
    looked_again(container)
    assert content(container) == content(opened(tmp_path / "c"))
    assert_the_program_sees_the_same(tmp_path / "c", tmp_path / "back")
    for _ in range(chance.randrange(1, 4)):
        damage_some(chance.choice(sorted((tmp_path / "c").glob("*.data"))), chance)
    assert_the_program_sees_the_same(tmp_path / "c", tmp_path / "back")
    (tmp_path / "c" / "index").unlink(missing_ok=True)
    assert_the_program_sees_the_same(tmp_path / "c", tmp_path / "back")


def damage_some(subfile: Path, chance: random.Random) -> None:
    size = subfile.stat().st_size
    with subfile.open("r+b") as file:
        # The numbers of lanes, a bit of what there is, or the end.
        what = chance.random()
        if what < 0.3:
            file.seek(128 + 4 * chance.randrange(3))
            file.write(chance.choice([0, 1, 2, 77, 1 | FINISHED, 2 | FINISHED]).to_bytes(4, "little"))
        elif what < 0.8 and size > 128:
            file.seek(chance.randrange(128, size))
            file.write(chance.randbytes(chance.choice([1, 1, 200])))
        else:
            file.truncate(chance.choice([chance.randrange(size + 1), 64, 0]))
