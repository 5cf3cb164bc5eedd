"""Parts of the reports of the scripts in this directory."""

import csv
import os
import platform
import statistics
import subprocess


def rows(output):
    """Returns the rows of raw.csv in the directory output."""
    with open(os.path.join(output, "raw.csv")) as raw:
        return list(csv.DictReader(raw))


def machine(*others):
    """Returns one line with the versions of tameike, of the other commands, and of the kernel, and the number of processors."""
    versions = [
        subprocess.run([command, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        for command in ("tameike", *others)
    ]
    return ", ".join([*versions, f"Linux {platform.release()}", f"{os.cpu_count()} processors"])


def columns(times, digits):
    """Returns the median, the range and the number of some times, as columns of a table."""
    return f"{statistics.median(times):.{digits}f} | {min(times):.{digits}f} to {max(times):.{digits}f} | {len(times)}"


def write(output, lines):
    """Writes and prints report.md."""
    with open(os.path.join(output, "report.md"), "w") as report:
        report.write("\n".join(lines) + "\n")
    print("\n".join(lines))
