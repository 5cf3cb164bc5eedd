#!/usr/bin/env python3
"""Mosaic of overlapping tiles with Montage: project, match the backgrounds, add, draw.

Reads the tiles in $TAMEIKE_CACHE/input, keeps intermediates in $TAMEIKE_SHARED/mosaic, writes the
mosaic, its area (weight) image and a PNG to $TAMEIKE_CACHE/output. In a Tameike job the work on
single tiles and overlaps is spread over all nodes; outside a job, with plain directories in those
two variables, everything runs on this machine. The pixels are equal in both cases: images are
listed in the order of their names, never in that of a directory, so sums are taken in one order.

Stops at the first step that leaves anything failed or missing, and names the step and the item.
"""

import argparse
import os
import pathlib
import shutil
import sys
import time

import montage

STEPS = 12
STRETCH = ("5%", "99.97%", "gaussian-log")  # mViewer: black, white, curve
DIRECTORY_MAX_BYTES = 200  # modules of Montage copy file names into 256 bytes, unchecked


class Mosaic:
    """One mosaic: its tiles, its directories and its steps in order."""

    def __init__(self, input_dir, work_dir, output_dir, nodes):
        self.tiles = sorted(path.name for path in input_dir.glob("*.fits"))
        self.input_dir = input_dir
        self.work_dir = work_dir
        self.projected_dir = work_dir / "projected"
        self.difference_dir = work_dir / "differences"
        self.corrected_dir = work_dir / "corrected"
        self.output_dir = output_dir
        self.frame = work_dir / "frame.hdr"
        self.mosaic = output_dir / "mosaic.fits"
        self.picture = output_dir / "mosaic.png"
        self.nodes = nodes
        self.steps_begun = 0

    def make(self):
        """Run all steps. Returns the number of overlaps and mViewer's result."""
        self.clear()
        images = self.list_images("list the tiles", self.input_dir)
        self.one("find a common frame", "mMakeHdr", images, self.frame)
        self.each("project", "tiles", [(tile, self.project(tile)) for tile in self.tiles])

        projected = self.list_images("list the projected tiles", self.projected_dir)
        overlaps = self.work_dir / "overlaps.tbl"
        self.one("find the overlaps", "mOverlaps", "-e", projected, overlaps)
        pairs = read_table(overlaps)
        self.each("subtract", "overlaps", [(pair["diff"], self.subtract(pair)) for pair in pairs])

        planes = self.work_dir / "planes.tbl"
        self.one("fit planes to the differences", "mFitExec", overlaps, planes, self.difference_dir, count=len(pairs))
        corrections = self.work_dir / "corrections.tbl"
        self.one("solve for the backgrounds", "mBgModel", projected, planes, corrections)
        background = {int(row["id"]): (row["a"], row["b"], row["c"]) for row in read_table(corrections)}
        if len(background) != len(self.tiles):
            raise montage.Failed(f"mBgModel: {len(background)} corrections for {len(self.tiles)} tiles")
        self.each("correct", "tiles", [(tile, self.correct(tile, *background[i])) for i, tile in enumerate(self.tiles)])

        corrected = self.list_images("list the corrected tiles", self.corrected_dir)
        self.one("add", "mAdd", "-p", self.corrected_dir, corrected, self.frame, self.mosaic)
        picture = self.one("draw", "mViewer", "-ct", 0, "-gray", self.mosaic, *STRETCH, "-out", self.picture)
        return len(pairs), picture

    def clear(self):
        """Check the input, and remove the results of earlier runs."""
        if not self.tiles:
            raise montage.Failed(f"no tiles in {self.input_dir}: make some with prepare.py")
        for directory in (self.input_dir, self.difference_dir, self.output_dir):
            if len(os.fsencode(directory)) > DIRECTORY_MAX_BYTES:
                raise montage.Failed(f"{directory}: over {DIRECTORY_MAX_BYTES} bytes, too long a name for Montage")
        if self.work_dir.exists():
            shutil.rmtree(self.work_dir)
        for directory in (self.projected_dir, self.difference_dir, self.corrected_dir, self.output_dir):
            directory.mkdir(parents=True, exist_ok=True)
        for old in (self.mosaic, self.output_dir / "mosaic_area.fits", self.picture):
            old.unlink(missing_ok=True)

    def project(self, tile):
        # Not mProject: it takes the area of a pixel as the sum of its angles less that of a flat
        # polygon. For Hubble's pixels (1.5e-14 steradian) that is rounding noise; some come out as
        # 0.8. mDiff, which drops pixels far from the mean area, then finds "All pixels are blank".
        # Tiles and frame are tangent planes, where mProjectPP computes the areas directly.
        return "mProjectPP", self.input_dir / tile, self.projected_dir / tile, self.frame

    def subtract(self, pair):
        plus, minus = self.projected_dir / pair["plus"], self.projected_dir / pair["minus"]
        return "mDiff", plus, minus, self.difference_dir / pair["diff"], self.frame

    def correct(self, tile, a, b, c):
        return "mBackground", self.projected_dir / tile, self.corrected_dir / tile, a, b, c

    def list_images(self, title, directory):
        """An image table of all tiles in a directory, in the order of their names."""
        names = self.work_dir / f"{directory.name}-names.tbl"
        width = max(map(len, self.tiles))
        names.write_text("".join([f"|{'fname':<{width}}|\n", *(f" {tile:<{width}} \n" for tile in self.tiles)]))
        table = self.work_dir / f"{directory.name}.tbl"
        # -C: no columns for cubes. -c: with the corners; without them mMakeHdr works them out from
        # CDELT and CROTA, which cannot hold the skew of Hubble's axes (6 degrees), and its frame
        # cuts off two corners.
        self.one(title, "mImgtbl", "-C", "-c", "-t", names, directory, table, count=len(self.tiles))
        return table

    def one(self, title, *command, count=None):
        """A step of a single call on this node, which must report `count` items where that is known."""
        with Progress(self, title, command[0]) as progress:
            result = self.nodes.run(title, command)
            if count is not None and int(result["count"]) != count:
                raise montage.Failed(f"{command[0]} ({title}): {result['count']} done, not {count}")
            progress.items = result.get("count", "")
        return result

    def each(self, title, noun, calls):
        """A step of one call per tile or overlap, spread over all nodes."""
        if not calls:
            raise montage.Failed(f"{title}: there are no {noun}")
        with Progress(self, f"{title} the {noun}", calls[0][1][0]) as progress:
            named = [(f"{title} {item}", command) for item, command in calls]
            self.nodes.run_all(named, lambda count: progress.show(f"{count}/{len(calls)}"))


class Progress:
    """One line per step: what it does, to how many items, in how many seconds."""

    def __init__(self, mosaic, title, module):
        mosaic.steps_begun += 1
        self.line = f"{mosaic.steps_begun:>2}/{STEPS}  {title:<31}{module:<13}"
        self.items = ""
        self.rewind = "\r" if sys.stdout.isatty() else ""
        self.begun = time.monotonic()
        self.show("")

    def show(self, items):
        self.items = items
        if self.rewind:
            print(f"{self.rewind}{self.line}{items:>10}", end="", flush=True)

    def __enter__(self):
        return self

    def __exit__(self, error, *_):
        end = "  FAILED" if error else f"{time.monotonic() - self.begun:6.1f} s"
        print(f"{self.rewind}{self.line}{self.items:>10}{end}", flush=True)


def read_table(path):
    """The rows of a Montage table as dictionaries; for tables whose values hold no blanks."""
    lines = path.read_text().splitlines()
    names = next(line for line in lines if line.startswith("|")).replace("|", " ").split()
    return [dict(zip(names, line.split())) for line in lines if line.startswith(" ")]


def directory_of(variable):
    if variable not in os.environ:
        sys.exit(f"mosaic: {variable} is not set: run under tameike, or set it to a plain directory")
    return pathlib.Path(os.environ[variable]).absolute()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--per-node", type=int, default=2, metavar="N", help="calls at a time on a node (default 2)")
    options = parser.parse_args()
    cache, shared = directory_of("TAMEIKE_CACHE"), directory_of("TAMEIKE_SHARED")

    nodes = montage.Nodes(options.per_node)
    mosaic = Mosaic(cache / "input", shared / "mosaic", cache / "output", nodes)
    where = f"{nodes.count} nodes" if nodes.in_job else "this machine, outside a job"
    print(f"mosaic: {len(mosaic.tiles)} tiles on {where}", flush=True)
    begun = time.monotonic()
    try:
        overlaps, picture = mosaic.make()
    except (montage.Failed, OSError) as failure:
        sys.exit(f"mosaic: STOPPED, there is no mosaic. {failure}")
    print(
        f"mosaic: {picture['width']} x {picture['height']} pixels from {len(mosaic.tiles)} tiles"
        f" and {overlaps} overlaps in {time.monotonic() - begun:.1f} s, nothing failed or missing\n"
        f"mosaic: {mosaic.mosaic}, with mosaic_area.fits and {mosaic.picture.name}"
    )


if __name__ == "__main__":
    main()
