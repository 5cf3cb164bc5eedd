"""Trees, and containers that the program packs from them."""

import os
import random
import shutil
import subprocess
import warnings
from pathlib import Path
from typing import Optional

import pytest

import tameike

ROOT = Path(__file__).resolve().parents[2]
#: Various ratios of blocks and chunks: files of many extents in many lanes, and extents of many chunks.
SHAPES = {
    "small blocks": ("--block-size=64KiB", "--subfiles=3", "--writers=5"),
    "large blocks": ("--block-size=4MiB", "--subfiles=1", "--writers=1"),
}


def program() -> str:
    """The program: by the environment, or the local build."""
    named = os.environ.get("TAMEIKE")
    built = [ROOT / "target" / profile / "tameike" for profile in ("debug", "release")]
    for path in [Path(named)] if named else built:
        if os.access(path, os.X_OK):
            return str(path)
    pytest.fail("no program: `cargo build --package tameike`, or name one in TAMEIKE")


def library(crate: str = "capi") -> str:
    """A library of the program's build."""
    directory = Path(program()).parent
    # Where `cargo build` and `cargo test` put it, and where it is installed.
    names = [f"libtameike_{crate}.so", f"deps/libtameike_{crate}.so"]
    names += ["libtameike.so.0"] if crate == "capi" else []
    built = [path for path in map(directory.joinpath, names) if path.is_file()]
    if not built:
        pytest.fail(f"no library: `cargo build --package tameike-{crate}`")
    return str(max(built, key=lambda path: path.stat().st_mtime))


def pack(source: Path, container: Path, *options: str) -> Path:
    """Packs a container with the program."""
    subprocess.run([program(), "agg", "create", *options, source, container], check=True, capture_output=True)
    return container


def opened(path: Path, use_index: bool = True) -> tameike.Container:
    """Opens a container, and ignores its damage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tameike.DamageWarning)
        return tameike.Container(path, use_index=use_index)


def without_index(container: Path, copy: Path) -> Path:
    shutil.copytree(container, copy)
    (copy / "index").unlink()
    return copy


def make_tree(root: Path, rng: random.Random) -> None:
    """Files of all kinds and sizes, with odd names."""
    for number in range(2000):
        file = root / "many" / f"{number % 20:02}" / f"{number:04}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(rng.choice([0, 1, 100, rng.randrange(3000)])))
    large = root / "large"
    large.mkdir()
    # Sizes around a quarter of a block, a chunk and a block.
    for size in (0, 1, 16_384, 16_385, 65_535, 65_536, 262_144, 262_145, 1_048_576, 1_048_577, 3_000_001, 9_500_000):
        (large / str(size)).write_bytes(rng.randbytes(size))
    with (large / "holes").open("wb") as file:
        for position in (1 << 20, 3 << 20, (5 << 20) + 777):
            file.seek(position)
            file.write(rng.randbytes(70_000))
        file.truncate(7 << 20)
    names = root / "names"
    names.mkdir()
    for name in (
        b"with space",
        b"line\nbreak",
        "tsūkei ☂".encode(),
        b"\xff\xfe no text \x80",
        b'"quoted"',
        b"x" * 255,
        b"-",
    ):
        Path(os.fsdecode(os.path.join(os.fsencode(names), name))).write_bytes(name)
    # Names with characters that sort before and after `/`.
    for path in ("order/a/x", "order/a!/x", "order/a-b/x", "order/a0/x", "order/a/b/x", "order/a.txt"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    deep = root.joinpath("deep", *["directory"] * 150)
    deep.mkdir(parents=True)
    (deep / "bottom").write_text("all the way down")
    make_links(root)
    (root / "empty").mkdir()
    os.mkfifo(root / "pipe", 0o600)
    (root / "large" / "1").chmod(0o604)
    os.utime(root / "large" / "1", ns=(5, -1_500_000_001))
    os.utime(root / "order", ns=(7, 1_700_000_000_123_456_789))


def make_links(root: Path) -> None:
    links = root / "links"
    links.mkdir()
    for name, target in (
        ("file", "../large/65536"),
        ("directory", "../order"),
        ("twice", "directory/a/b"),
        ("dangling", "nowhere"),
        ("outside", "../../../etc/passwd"),
        ("absolute", "/etc/passwd"),
        ("loop", "loop"),
    ):
        (links / name).symlink_to(target)


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    make_tree(root, random.Random(20))
    return root


@pytest.fixture(scope="session")
def packed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A container of each shape."""
    position = tmp_path_factory.mktemp("packed")
    return {shape: pack(tree, position / shape.replace(" ", "-"), *options) for shape, options in SHAPES.items()}


@pytest.fixture(params=[*SHAPES, "no index", "use_index=False"])
def container(request: pytest.FixtureRequest, packed: dict[str, Path], tmp_path: Path) -> tameike.Container:
    """The tree, in every shape, opened in every way."""
    if request.param == "no index":
        return tameike.Container(without_index(packed["small blocks"], tmp_path / "copy"))
    if request.param == "use_index=False":
        return tameike.Container(packed["small blocks"], use_index=False)
    return tameike.Container(packed[request.param])


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, bytes]]:
    """A small container of many lanes, and the content of its files."""
    rng, root = random.Random(4), tmp_path_factory.mktemp("small")
    files = {f"d{n % 3}/f{n}": rng.randbytes(rng.choice([0, 10, 3000, 20_000, 90_000])) for n in range(60)}
    for path, data in files.items():
        (root / "tree" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "tree" / path).write_bytes(data)
    made = pack(root / "tree", root / "made", "--block-size=64KiB", "--subfiles=2", "--writers=4")
    return made, files


def files_below(root: Path, directory: str = "") -> dict[str, Optional[bytes]]:
    """All paths below a directory, with the content of regular files."""
    found: dict[str, Optional[bytes]] = {}
    for at, directories, names in os.walk(root / directory):
        for name in [*directories, *names]:
            path = Path(at, name)
            is_file = path.is_file() and not path.is_symlink()
            found[str(path.relative_to(root))] = path.read_bytes() if is_file else None
    return found
