"""The example of a training loop that reads a container."""

import subprocess
import sys
from pathlib import Path

from conftest import ROOT, pack


def test_epochs_read_each_byte_of_each_file(tmp_path: Path) -> None:
    samples = tmp_path / "samples"
    for number in range(50):
        sample = samples / str(number % 7) / f"{number}.bin"
        sample.parent.mkdir(parents=True, exist_ok=True)
        sample.write_bytes(bytes([number]) * (1000 * number))
    container = pack(samples, tmp_path / "samples.tmk")
    command = [sys.executable, ROOT / "examples/python/epochs.py", container, "--epochs", "2", "--workers", "3"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    size = sum(1000 * number for number in range(50))
    assert [line.split(" bytes")[0] for line in lines] == [f"epoch {epoch}: 50 files, {size}" for epoch in range(2)]
