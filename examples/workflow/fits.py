"""Reads and writes single FITS images.

Not a FITS library: no scaling (BSCALE, BZERO), no tables, floating-point pixels only.
Header values stay text, so that copying a coordinate keeps every digit.
"""

import array
import sys

BLOCK_BYTES = 2880
CARD_BYTES = 80
TYPECODES = {"-32": "f", "-64": "d"}


class Image:
    """Pixels in file order (first row is the bottom of the picture) and header values as text."""

    def __init__(self, header, pixels):
        self.header = header
        self.pixels = pixels
        self.width = int(header["NAXIS1"])
        self.height = int(header["NAXIS2"])


def read(path, extension=None):
    """The primary image of a file, or the image extension of that name."""
    with open(path, "rb") as file:
        while True:
            header = _read_header(file, path)
            data_bytes = _data_bytes(header)
            if extension is None or header.get("EXTNAME") == extension:
                break
            file.seek(_padded(data_bytes), 1)
        data = file.read(data_bytes)
    if header.get("BITPIX") not in TYPECODES or header.get("NAXIS") != "2":
        raise ValueError(f"{path}: not a two-dimensional floating-point image")
    if len(data) != data_bytes:
        raise ValueError(f"{path}: truncated, {len(data)} of {data_bytes} bytes of pixels")
    return Image(header, _swap(array.array(TYPECODES[header["BITPIX"]], data)))


def write(path, values, pixels, width, height):
    """A primary image of 32-bit floats; `values` are the cards after the size, as FITS text."""
    cards = {"SIMPLE": "T", "BITPIX": "-32", "NAXIS": "2", "NAXIS1": width, "NAXIS2": height, **values}
    header = "".join(f"{name:<8}= {value:>20}".ljust(CARD_BYTES) for name, value in cards.items())
    header += "END"
    data = _swap(array.array("f", pixels)).tobytes()
    with open(path, "wb") as file:
        file.write(header.ljust(_padded(len(header))).encode("ascii"))
        file.write(data.ljust(_padded(len(data)), b"\0"))


def text(value):
    """A header string in FITS form: quoted, at least eight characters."""
    return f"'{value:<8}'"


def _read_header(file, path):
    values = {}
    while True:
        block = file.read(BLOCK_BYTES).decode("latin-1")
        if len(block) != BLOCK_BYTES:
            raise ValueError(f"{path}: the image is missing")
        for start in range(0, BLOCK_BYTES, CARD_BYTES):
            card = block[start : start + CARD_BYTES]
            name = card[:8].rstrip()
            if name == "END":
                return values
            if card[8:10] == "= ":
                value = card[10:].split("'")[1] if card[10:].lstrip().startswith("'") else card[10:].split("/")[0]
                values[name] = value.strip()


def _data_bytes(header):
    axes = [int(header[f"NAXIS{axis + 1}"]) for axis in range(int(header["NAXIS"]))]
    size = abs(int(header["BITPIX"])) // 8 if axes else 0
    for axis in axes:
        size *= axis
    return size


def _padded(size):
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def _swap(pixels):
    """FITS pixels are big-endian."""
    if sys.byteorder == "little":
        pixels.byteswap()
    return pixels
