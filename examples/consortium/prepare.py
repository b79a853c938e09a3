"""Write the files of three parties: bank.csv with the labels, telco.csv and shop.csv.

    python examples/consortium/prepare.py

Each party has columns of its own about the same people, in its own order, and lacks some of the people. The data are
the defaults of 30,000 credit card customers, from the folder credit in $VERFEDSV_DATA, or, if they are not there,
Adult, which ships with the package.
"""

import argparse
import bz2
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from verfedsv.data.adult import ATTRIBUTES, load_adult

HERE = Path(__file__).parent
HAS = {"bank": 0.95, "telco": 0.9, "shop": 0.85}
"""Which fraction of the people each party knows."""
OF_SHOP = ("id", "z7", "z8", "z9", *(f"x{k}" for k in range(7, 13)))
OF_ADULT = {
    "bank": ("age", "education-num", "capital-gain", "capital-loss"),
    "telco": ("marital-status", "relationship", "race", "sex", "native-country"),
    "shop": ("workclass", "education", "occupation", "hours-per-week"),
}


def read_credit(folder: Path) -> dict[str, pa.Table]:
    """Return the table of each party from the two files of the credit data, whose rows are in the same order."""
    guest, host = (
        pa.csv.read_csv(pa.BufferReader(bz2.decompress((folder / f"default_credit_{side}.csv.bz2").read_bytes())))
        for side in ("guest", "host")
    )
    host = host.rename_columns(["id", *(f"z{k}" for k in range(10))])
    return {
        "bank": guest.select(["id", "y", *(f"x{k}" for k in range(7))]),
        "telco": host.select(["id", *(f"z{k}" for k in range(7))]),
        "shop": pa.table({name: (guest if name in guest.column_names else host)[name] for name in OF_SHOP}),
    }


def read_adult() -> dict[str, pa.Table]:
    """Return the table of each party, with one column of categories for each attribute."""
    features, labels = load_adult()
    ends = np.cumsum([*ATTRIBUTES.values()])
    by_attribute = dict(zip(ATTRIBUTES, np.split(features.toarray(), ends[:-1], axis=1)))
    tables = {}
    for party, attributes in OF_ADULT.items():
        columns = {"id": np.arange(len(labels)) + 100_000}
        if party == "bank":
            columns["y"] = (labels > 0).astype(int)
        for name in attributes:
            columns[name] = np.char.add("c", by_attribute[name].argmax(axis=1).astype(str))
        tables[party] = pa.table(columns)
    return tables


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--people", type=int, help="use only this many people")
    parser.add_argument("--folder", type=Path, default=HERE, help="where to write; default: beside this script")
    arguments = parser.parse_args()
    credit = Path(os.environ.get("VERFEDSV_DATA", "")) / "credit"
    if (credit / "default_credit_host.csv.bz2").exists():
        tables, source = read_credit(credit), f"the credit data in {credit}"
    else:
        tables, source = read_adult(), "Adult, as there are no credit data in $VERFEDSV_DATA"
    print(f"From {source}:")
    rng = np.random.default_rng(0)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    n_people = min(arguments.people or len(tables["bank"]), len(tables["bank"]))
    for party, table in tables.items():
        rows = rng.choice(n_people, round(HAS[party] * n_people), replace=False)  # in random order
        path = arguments.folder / f"{party}.csv"
        pa.csv.write_csv(table.take(rows), path, pa.csv.WriteOptions(quoting_style="needed"))
        print(f"{path}: {len(rows):,} people, {len(table.column_names) - 1} columns and their id")


if __name__ == "__main__":
    main()
