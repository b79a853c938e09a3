"""A small run on files of three clients: numbers with gaps, booleans, a constant column and text."""

import csv

import numpy as np

from verfedsv.runs import Run

CONFIG = """[data]
label = "y"
label_client = "bank"
test = 0.25
scale = "{scale}"

[[client]]
name = "bank"
file = "bank.csv"
[[client]]
name = "telco"
file = "telco.csv"
id = "key"
[[client]]
name = "shop"
file = "shop.csv"

[model]
kind = "{model}"

[training]
batch_size = 40
rate = 0.5
rounds = 12
intercept = true
seed = 1

[output]
folder = "runs/credit"
"""


def write_csv(path, rows):
    """Write a list of dictionaries."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path


def make_rows(n_rows=160, classes=("no", "yes"), seed=0):
    """Return the rows of all clients, by client."""
    rng = np.random.default_rng(seed)
    score = rng.normal(size=n_rows)
    labels = [classes[k] for k in np.digitize(score, np.linspace(-1, 1, len(classes) + 1)[1:-1])]
    bank = [
        {
            "id": f"p{i:03}",
            "y": labels[i],
            "age": "" if i % 11 == 3 else round(40 + 9 * score[i] + rng.normal(), 2),
            "owner": ["true", "false"][i % 2],
            "country": 7,
        }
        for i in range(n_rows)
    ]
    telco = [
        {
            "key": f"p{i:03}",
            "calls": round(score[i] + rng.normal(), 3),
            "plan": ["A", "12", "", "Ü, x"][rng.integers(4)],
        }
        for i in rng.permutation(n_rows)
    ]
    shop = [{"id": f"p{i:03}", "spent": round(50 * rng.normal(), 2)} for i in range(n_rows)]
    return {"bank": bank, "telco": telco, "shop": shop}


def train(folder, model="linear", scale="standardise", **options):
    """Train on these files in a folder; return the run."""
    for name, rows in make_rows(**options).items():
        write_csv(folder / f"{name}.csv", rows)
    (folder / "run.toml").write_text(CONFIG.format(model=model, scale=scale), encoding="utf-8")
    run = Run.of_file(folder / "run.toml")
    for _ in run.train():
        pass
    return run
