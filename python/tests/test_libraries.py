"""Libraries that open files by fsspec read from a container."""

import fsspec
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from conftest import pack


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return pd.DataFrame({"step": range(5000), "loss": np.linspace(2, 0.1, 5000)})


@pytest.fixture(scope="module")
def field() -> xr.Dataset:
    values = np.random.default_rng(3).normal(size=(20, 60, 80)).astype("float32")
    coordinates = {"time": np.arange(20), "y": np.arange(60), "x": np.arange(80)}
    return xr.Dataset({"t": (("time", "y", "x"), values)}, coordinates, {"unit": "K"})


@pytest.fixture(scope="module")
def url(frame: pd.DataFrame, field: xr.Dataset, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The part of a file's URL after the path."""
    root = tmp_path_factory.mktemp("libraries")
    tree = root / "tree"
    (tree / "runs" / "7").mkdir(parents=True)
    frame.to_csv(tree / "runs" / "7" / "loss.csv", index=False)
    frame.to_csv(tree / "runs" / "7" / "loss.csv.gz", index=False)
    field.to_zarr(tree / "field.zarr", encoding={"t": {"chunks": (1, 30, 40)}}, consolidated=False)
    made = pack(tree, root / "made", "--block-size=64KiB", "--subfiles=2")
    return f"::file://{made}"


def test_pandas_reads_a_table(url: str, frame: pd.DataFrame) -> None:
    read = pd.read_csv(f"tameike-agg://runs/7/loss.csv{url}")
    pd.testing.assert_frame_equal(read, frame)
    options = {"fo": url.removeprefix("::")}
    pd.testing.assert_frame_equal(
        pd.read_csv("tameike-agg://runs/7/loss.csv.gz", storage_options=options, compression="gzip"), frame
    )


def test_xarray_reads_a_zarr_store(url: str, field: xr.Dataset) -> None:
    # xarray allows no hyphen in a protocol.
    with xr.open_zarr(f"tameikeagg://field.zarr{url}", consolidated=False) as read:
        xr.testing.assert_identical(read.load(), field)
    store = fsspec.get_mapper(f"tameike-agg://field.zarr{url}")
    with xr.open_dataset(store, engine="zarr", consolidated=False) as read:
        np.testing.assert_array_equal(read.t[7, 10:50, 20:60], field.t[7, 10:50, 20:60])


def test_zarr_lists_a_group(url: str, field: xr.Dataset) -> None:
    group = zarr.open_group(f"tameike-agg://field.zarr{url}", mode="r")
    assert sorted(group.array_keys()) == ["t", "time", "x", "y"]
    np.testing.assert_array_equal(group["t"][3], field.t[3])
