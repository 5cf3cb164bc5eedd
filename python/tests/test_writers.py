"""Containers of many writers and incarnations: the program and this package read the same."""

import contextlib
import random
import re
import shutil
import subprocess
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, files_below, opened, program
from writer import FINISHED, Lane, compressed, entry

from tameike import Container, DamagedError, DamageWarning
from tameike.codec import ZSTD

LANES = [(0, 0), (0, 2), (1, 1), (1 << 16, 0)]
DAMAGE = re.compile(r"^damage   lane (\d+) of subfile (\d+), at (\d+): (.*)$", re.M)


def refreshed(container: Container) -> Container:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DamageWarning)
        container.refresh()
    return container


def content(container: Container) -> dict[str, bytes]:
    """Content of all undamaged files."""
    found = {}
    for item in container.walk():
        if not item.is_file():
            continue
        with contextlib.suppress(DamagedError):
            found[item.path] = container.read_bytes(item.path)
    return found


def agg(*arguments: object) -> str:
    done = subprocess.run([program(), "agg", *map(str, arguments)], check=False, capture_output=True, text=True)
    return done.stdout


def assert_the_program_reads_the_same(path: Path, position: Path) -> None:
    """Compares names and their order, contents, and damage."""
    container = opened(path)
    assert [item.path for item in container.walk()] == agg("ls", "-r", path).splitlines()
    agg("extract", path, position)
    assert content(container) == {name: data for name, data in files_below(position).items() if data is not None}
    shutil.rmtree(position)
    damage = [(*reversed(damage.lane), damage.address) for damage in opened(path, use_index=False).damage]
    reported = [tuple(map(int, match[:3])) for match in DAMAGE.findall(agg("verify", path))]
    # The program may scan a lane twice if it was written meanwhile, so the order may differ.
    assert sorted(damage) == sorted(reported)


class Scenario:
    """Writers that begin, put, sync, finish and crash, at random."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.rng = random.Random(seed)
        self.writers: dict[tuple[int, int], Lane] = {}
        self.versions = 0
        #: Expected content while nothing was lost.
        self.model: dict[str, bytes] = {}
        self.has_lost = False
        self.step()

    def run(self, steps_max: int, closes: float) -> Iterator[int]:
        """Makes steps, and yields their numbers. Closes some times with the probability ``closes``."""
        for number in range(self.rng.randrange(20, steps_max)):
            self.step()
            if number % 40 == 30 and self.rng.random() < closes:
                self.close()
            yield number

    def step(self) -> None:
        position = self.rng.choice(LANES)
        writer = self.writers.get(position)
        if writer is None:
            self.writers[position] = Lane(self.directory, position[0], lane=position[1], lanes=3)
            return
        what = self.rng.random()
        if what < 0.7:
            self.put(writer, f"d{self.rng.randrange(3)}/f{self.rng.randrange(8)}")
        elif what < 0.85:
            writer.sync()
        else:
            del self.writers[position]
            if what < 0.93:
                writer.finish()

    def put(self, writer: Lane, path: str) -> None:
        self.versions += 1
        if self.rng.random() < 0.15:
            writer.append(0, entry(path.encode(), self.versions, None), b"")
            self.model.pop(path, None)
            return
        size = self.rng.choice([0, 5, 300, 5000, 16_000, 90_000])
        data = self.rng.randbytes(size)
        options: dict[str, Any] = {}
        if self.rng.random() < 0.4:
            # A part is compressible.
            data = data[: size // 3] + (data[:9] * size)[: size - size // 3]
            options = {"codec": ZSTD, "encode": compressed}
        self.model[path] = data
        if len(data) <= 16_000:
            writer.append(0, entry(path.encode(), self.versions, len(data)), data, **options)
            return
        extents = []
        for at in range(0, len(data), 20_000):
            piece = data[at : at + 20_000]
            address = writer.append(1, b"", piece, **options)
            extents.append((at, len(piece), writer.subfile, writer.lane, address, 0))
        writer.append(0, entry(path.encode(), self.versions, len(data), extents=extents), b"")

    def close(self) -> None:
        """Syncs all writers and writes an index, whose entries cannot be lost."""
        for writer in self.writers.values():
            writer.sync()
        agg("verify", "--rebuild", self.directory)
        assert (self.directory / "index").exists()

    def lose(self) -> None:
        """Crashes all writers; a power failure loses some unsynced bytes of one."""
        torn = self.rng.choice(list(self.writers.values()))
        self.writers.clear()
        start, end = torn.position(torn.durable_end), torn.position(torn.address)
        if torn.address > torn.durable_end and end - start == torn.address - torn.durable_end:
            self.has_lost = True
            at = self.rng.randrange(start, end)
            torn.write_at(at, bytes(min(self.rng.choice([10, 100, 4096, 30_000]), end - at)))


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test program of the C library; skips without the library or a compiler."""
    built, compiler = Path(program()).parent, shutil.which("cc")
    # Built by itself, or for its tests.
    libraries = [*built.glob("libtameike_capi.so"), *built.glob("deps/libtameike_capi.so")]
    if compiler is None or not libraries:
        pytest.skip("no compiler, or no library: `cargo build --package tameike-capi`")
    position, source = tmp_path_factory.mktemp("c"), ROOT / "crates" / "capi"
    for name in ("libtameike.so", "libtameike.so.0"):
        (position / name).symlink_to(max(libraries, key=lambda library: library.stat().st_mtime))
    flags = ["-std=gnu11", f"-I{source}/include", f"-L{position}", "-ltameike", f"-Wl,-rpath,{position}"]
    made = position / "containers"
    subprocess.run([compiler, source / "tests" / "calls" / "containers.c", "-o", made, *flags], check=True)
    return made


def of_storm(number: int) -> bytes:
    """The content that the C program writes to a file."""
    start = number * 31 % 251
    return (bytes(range(251)) * 241)[start:][: number * 7919 % 60_000]


def test_files_of_a_c_program_are_readable_while_it_writes(c_program: Path, tmp_path: Path) -> None:
    rng, durable = random.Random(), {}
    made = tmp_path / "c"
    subprocess.run([c_program, made, "child"], check=True)
    container = Container(made)
    for kill in range(12):
        names = [f"{kill}a", f"{kill}b"]
        writers = [
            subprocess.Popen([c_program, made, "storm", name], stdout=subprocess.PIPE, text=True) for name in names
        ]
        for name, writer in zip(names, writers):
            time.sleep(rng.uniform(0.005, 0.05))
            refreshed(container)
            writer.kill()
            output, _ = writer.communicate()
            assert "not so" not in output
            # The last line may be incomplete.
            lines = output[: output.rfind("\n") + 1].split()
            durable[name] = int(lines[-1]) + 1 if lines else 0
        if kill == 6:
            agg("verify", "--rebuild", made)
    assert sum(durable.values()) > 0
    for read in (refreshed(container), opened(made), opened(made, use_index=False)):
        found = content(read)
        assert found.pop("parent") == b"p" and found.pop("child") == b""
        assert found.pop("large") == bytes(100_000)
        for path, data in found.items():
            assert data == of_storm(int(path.rpartition("/")[2])), path
        for name, count in durable.items():
            assert all(f"{name}/{number}" in found for number in range(count))
    assert_the_program_reads_the_same(made, tmp_path / "back")


@pytest.mark.parametrize("what", ["calls", "child", "lone-child"])
def test_files_of_a_killed_c_program_are_read(c_program: Path, tmp_path: Path, what: str) -> None:
    subprocess.run([c_program, tmp_path / "c", what], check=True)
    assert Container(tmp_path / "c").has_index
    assert_the_program_reads_the_same(tmp_path / "c", tmp_path / "back")


@pytest.mark.parametrize("seed", range(24))
def test_files_of_many_writers_are_read(tmp_path: Path, seed: int) -> None:
    scenario = Scenario(tmp_path / "c", seed)
    container = Container(tmp_path / "c")
    for number in scenario.run(150, 0.7):
        if number % 17 == 0:
            container.refresh()
            assert content(container) == scenario.model
        if number % 60 == 0:
            container = Container(tmp_path / "c", use_index=scenario.rng.random() < 0.7)
    container.refresh()
    for read in (container, Container(tmp_path / "c"), Container(tmp_path / "c", use_index=False)):
        assert content(read) == scenario.model
        assert read.damage == []
    assert_the_program_reads_the_same(tmp_path / "c", tmp_path / "back")


@pytest.mark.parametrize("seed", range(40))
def test_the_program_agrees_on_lost_and_damaged_files(tmp_path: Path, seed: int) -> None:
    scenario = Scenario(tmp_path / "c", seed)
    rng = scenario.rng
    container = Container(tmp_path / "c")
    for number in scenario.run(100, 0.5):
        if number % 25 == 20 and scenario.writers:
            scenario.lose()
            container = opened(tmp_path / "c", use_index=rng.random() < 0.5)
    refreshed(container)
    assert content(container) == content(opened(tmp_path / "c"))
    assert_the_program_reads_the_same(tmp_path / "c", tmp_path / "back")
    for _ in range(rng.randrange(1, 4)):
        damage_some(rng.choice(sorted((tmp_path / "c").glob("*.data"))), rng)
    assert_the_program_reads_the_same(tmp_path / "c", tmp_path / "back")
    (tmp_path / "c" / "index").unlink(missing_ok=True)
    assert_the_program_reads_the_same(tmp_path / "c", tmp_path / "back")


def damage_some(subfile: Path, rng: random.Random) -> None:
    size = subfile.stat().st_size
    with subfile.open("r+b") as file:
        # Damage the lanes' incarnations, some bytes, or the end.
        what = rng.random()
        if what < 0.3:
            file.seek(128 + 4 * rng.randrange(3))
            file.write(rng.choice([0, 1, 2, 77, 1 | FINISHED, 2 | FINISHED]).to_bytes(4, "little"))
        elif what < 0.8 and size > 128:
            file.seek(rng.randrange(128, size))
            file.write(rng.randbytes(rng.choice([1, 1, 200])))
        else:
            file.truncate(rng.choice([rng.randrange(size + 1), 64, 0]))
