#!/usr/bin/env python3
"""Cut one Hubble exposure of 47 Tucanae into overlapping tiles, as input for mosaic.py.

Each tile is a separate FITS image in DIR/input, with the exposure's sky coordinates (the whole
CD matrix: its axes are not at right angles) and its own sky level and slope, as separate
exposures have. The mosaic must find and remove those. Same arguments, same bytes.
"""

import argparse
import array
import math
import pathlib
import random
import sys

import fits

EXPOSURE = "/usr/share/python-drizzle/test_data/j8bt06nyq_flt.fits"
OVERLAP = 0.25  # part of a tile's side shared with its neighbour
TILE_MIN_PIXELS = 32  # below this the overlaps hold too few pixels to fit a plane
SKY_SEED = 47
SKY_LEVEL_ELECTRONS = 80.0  # largest change of a tile's sky, up or down
SKY_SLOPE_ELECTRONS = 20.0  # largest change of it from one side of a tile to the other

COPIED = ("CRVAL1", "CRVAL2", "CD1_1", "CD1_2", "CD2_1", "CD2_2")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dir", type=pathlib.Path, metavar="DIR", help="shared directory; tiles go to DIR/input")
    parser.add_argument("--tiles", type=int, default=25, metavar="N", help="a square number (default 25)")
    parser.add_argument("--enlarge", type=int, default=1, metavar="K", help="K x K pixels for each of the exposure's (default 1)")
    options = parser.parse_args()
    if options.enlarge < 1:
        parser.error(f"--enlarge {options.enlarge}: take 1 or more")

    side = math.isqrt(max(options.tiles, 0))
    if side < 2 or side * side != options.tiles:
        parser.error(f"--tiles {options.tiles}: take a square number, as 25, 36, 100, 225 or 400")
    try:
        exposure = fits.read(EXPOSURE, extension="SCI")
    except FileNotFoundError:
        sys.exit(f"prepare: {EXPOSURE} is missing: apt-get install python-drizzle-testdata")

    exposure = enlarged(exposure, options.enlarge)
    # A row of `side` tiles, each overlapping the one before by OVERLAP, spans the exposure.
    size = math.ceil(min(exposure.width, exposure.height) / (1 + (side - 1) * (1 - OVERLAP)))
    if size < TILE_MIN_PIXELS:
        parser.error(f"--tiles {options.tiles}: tiles of {size} pixels are too small, {TILE_MIN_PIXELS} are needed")

    input_dir = options.dir / "input"
    input_dir.mkdir(parents=True, exist_ok=True)
    for old in input_dir.glob("tile-*.fits"):
        old.unlink()
    sky = random.Random(SKY_SEED)
    for row in range(side):
        for column in range(side):
            left = round(column * (exposure.width - size) / (side - 1))
            bottom = round(row * (exposure.height - size) / (side - 1))
            pixels = cut(exposure, left, bottom, size, sky)
            fits.write(input_dir / f"tile-{row:02}-{column:02}.fits", cards(exposure, left, bottom), pixels, size, size)
    print(f"prepare: {options.tiles} tiles of {size} x {size} pixels in {input_dir}")


def enlarged(exposure, factor):
    """The exposure with each pixel divided into `factor` x `factor` equal ones, which lie where it lay."""
    if factor == 1:
        return exposure
    rows = []
    for start in range(0, len(exposure.pixels), exposure.width):
        row = exposure.pixels[start : start + exposure.width]
        rows.append(array.array("f", (value for value in row for _ in range(factor))) * factor)
    header = dict(exposure.header)
    for name in ("CD1_1", "CD1_2", "CD2_1", "CD2_2"):
        header[name] = repr(float(header[name]) / factor)
    for name in ("CRPIX1", "CRPIX2"):
        header[name] = repr((float(header[name]) - 0.5) * factor + 0.5)
    header |= {"NAXIS1": str(exposure.width * factor), "NAXIS2": str(exposure.height * factor)}
    return fits.Image(header, array.array("f", b"".join(row.tobytes() for row in rows)))


def cut(exposure, left, bottom, size, sky):
    """The pixels of one tile, with its own sky plane added."""
    level = sky.uniform(-SKY_LEVEL_ELECTRONS, SKY_LEVEL_ELECTRONS)
    slope_x = sky.uniform(-SKY_SLOPE_ELECTRONS, SKY_SLOPE_ELECTRONS) / size
    slope_y = sky.uniform(-SKY_SLOPE_ELECTRONS, SKY_SLOPE_ELECTRONS) / size
    tile = array.array("f")
    for y in range(size):
        start = (bottom + y) * exposure.width + left
        offset = level + slope_y * y
        row = exposure.pixels[start : start + size]
        tile.extend(value + offset + slope_x * x for x, value in enumerate(row))
    return tile


def cards(exposure, left, bottom):
    """The tile's sky coordinates: the exposure's, with the reference pixel counted from the tile's corner."""
    header = exposure.header
    return {
        "BUNIT": fits.text(header["BUNIT"]),
        "CTYPE1": fits.text(header["CTYPE1"]),
        "CTYPE2": fits.text(header["CTYPE2"]),
        "EQUINOX": "2000.0",
        "CRPIX1": float(header["CRPIX1"]) - left,
        "CRPIX2": float(header["CRPIX2"]) - bottom,
        **{name: header[name] for name in COPIED},
    }


if __name__ == "__main__":
    main()
