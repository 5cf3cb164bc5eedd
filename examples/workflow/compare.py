#!/usr/bin/env python3
"""Compares two mosaics bit for bit.

Reads the mosaic and its area (weight) image in two output directories of mosaic.py. Blank
pixels (NaN) must be blank in both. Exit status: 0 the same, 1 different, 2 could not compare.
"""

import argparse
import math
import pathlib
import struct
import sys

import fits

FILES = ("mosaic.fits", "mosaic_area.fits")
SKY = ("CTYPE1", "CTYPE2", "CRVAL1", "CRVAL2", "CRPIX1", "CRPIX2", "CDELT1", "CDELT2", "CROTA2")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("left", type=pathlib.Path, metavar="DIR", help="output directory of one run")
    parser.add_argument("right", type=pathlib.Path, metavar="OTHER", help="output directory of another run")
    options = parser.parse_args()
    try:
        same = [compare(name, options.left / name, options.right / name) for name in FILES]
    except (OSError, ValueError, KeyError) as error:
        print(f"compare: cannot compare: {error}", file=sys.stderr)
        sys.exit(2)
    print("compare: the mosaics are the same" if all(same) else "compare: THE MOSAICS DIFFER")
    sys.exit(0 if all(same) else 1)


def compare(name, left_path, right_path):
    """Print how two images compare; True if they are the same."""
    left, right = fits.read(left_path), fits.read(right_path)
    for key in ("BITPIX", "NAXIS1", "NAXIS2", *SKY):
        if left.header.get(key) != right.header.get(key):
            print(f"{name}: {key} is {left.header.get(key)} in one, {right.header.get(key)} in the other")
            return False
    filled = sum(1 for value in left.pixels if not math.isnan(value) and value != 0)
    if filled == 0:
        raise ValueError(f"{left_path}: every pixel is blank")
    size = f"{left.width} x {left.height} pixels, {filled} of them filled"
    different = differences(left.pixels, right.pixels)
    if not different:
        print(f"{name}: same ({size})")
        return True
    row, column = divmod(different[0], left.width)
    values = left.pixels[different[0]], right.pixels[different[0]]
    print(
        f"{name}: {len(different)} pixels differ ({size});"
        f" the first is x={column + 1} y={row + 1}: {values[0]!r} and {values[1]!r}"
    )
    return False


def differences(left, right):
    """Indices of the pixels that are not bit-equal, where not both are blank."""
    if left.tobytes() == right.tobytes():
        return []
    return [
        index
        for index, (a, b) in enumerate(zip(left, right))
        if struct.pack("d", a) != struct.pack("d", b) and not (math.isnan(a) and math.isnan(b))
    ]


if __name__ == "__main__":
    main()
