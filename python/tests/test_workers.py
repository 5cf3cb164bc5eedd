"""Containers in threads and processes, as loaders of training data use them."""

import multiprocessing
import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tameike import Container, ContainerFileSystem


class Files:
    """A data set for PyTorch; a part is read before the workers start."""

    def __init__(self, container: Any) -> None:
        self.container = container
        self.paths = sorted(entry.path for entry in container.walk("many") if entry.is_file())
        self.paths += ["large/9500000", "large/holes"]
        self[0]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[str, bytes]:
        path = self.paths[number]
        return path, self.container.read_bytes(path)


class FilesOfFileSystem(Files):
    """The same by fsspec."""

    def __init__(self, fs: ContainerFileSystem) -> None:
        self.fs = fs
        super().__init__(fs.container)

    def __getitem__(self, number: int) -> tuple[str, bytes]:
        path = self.paths[number]
        return path, self.fs.cat_file(path)


DATA_SETS: list[Callable[[Path], Files]] = [
    lambda path: Files(Container(path)),
    lambda path: FilesOfFileSystem(ContainerFileSystem(path)),
]
in_worker: Files


def begin(files: Files) -> None:
    global in_worker
    in_worker = files


def get(number: int) -> tuple[str, bytes]:
    return in_worker[number]


@pytest.mark.parametrize("make", DATA_SETS, ids=["container", "fsspec"])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_four_processes_read_the_packed_files(
    packed: dict[str, Path], tree: Path, method: str, make: Callable[[Path], Files]
) -> None:
    files = make(packed["small blocks"])
    order = list(range(len(files)))
    random.Random(8).shuffle(order)
    with multiprocessing.get_context(method).Pool(4, begin, (files,)) as pool:
        read = dict(pool.imap_unordered(get, order, chunksize=16))
    assert len(read) == len(files)
    for path, data in read.items():
        assert data == (tree / path).read_bytes(), path


def test_threads_share_a_container_and_a_file(packed: dict[str, Path], tree: Path) -> None:
    container = Container(packed["large blocks"])
    reader = container.reader("large/9500000")
    data = (tree / "large/9500000").read_bytes()
    paths = [entry.path for entry in container.walk("many") if entry.is_file()]
    wrong: list[object] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(150):
                offset, size = rng.randrange(len(data)), rng.choice([100, 10_000, 700_000])
                if reader.read_at(offset, size) != data[offset : offset + size]:
                    wrong.append(offset)
                path = rng.choice(paths)
                if container.read_bytes(path) != (tree / path).read_bytes():
                    wrong.append(path)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def refresh_child() -> int:
    in_worker.container.refresh()
    return len(in_worker)


def test_a_forked_child_refreshes_independently_of_its_parent(packed: dict[str, Path]) -> None:
    files = Files(Container(packed["small blocks"]))
    with files.container._refresh_lock(), multiprocessing.get_context("fork").Pool(1, begin, (files,)) as pool:
        assert pool.apply_async(refresh_child).get(timeout=60) == len(files)


def test_a_torch_loader_reads_the_packed_files(packed: dict[str, Path], tree: Path) -> None:
    data = pytest.importorskip("torch.utils.data", reason="PyTorch is not here; the processes above stand for it")
    with warnings.catch_warnings():
        # Fewer cores than workers.
        warnings.simplefilter("ignore")
        for method in ("fork", "spawn"):
            files = Files(Container(packed["small blocks"]))
            loader = data.DataLoader(
                files,
                batch_size=32,
                shuffle=True,
                num_workers=4,
                multiprocessing_context=method,
                collate_fn=list,
            )
            read = dict(item for batch in loader for item in batch)
            assert len(read) == len(files)
            for path, content in read.items():
                assert content == (tree / path).read_bytes()
