"""Vertical training in plain PyTorch, with three lines added so that verfedsv can value its clients.

Two organisations hold columns about the same 30,000 credit card clients; one of them knows who defaulted. The data are
"Default of credit card clients" (I-Cheng Yeh, UCI Machine Learning Repository), split into a guest's and a host's file.

    python examples/torch_loop.py FOLDER_WITH_THE_TWO_FILES [--epochs 5] [--output runs/credit]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pyarrow.csv
import torch

import verfedsv


def load(folder: Path) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the columns of each organisation and the labels, rows in the order of their ids."""
    tables = {
        name: pyarrow.csv.read_csv(folder / f"default_credit_{name}.csv.bz2").sort_by("id")
        for name in ("guest", "host")
    }
    labels = torch.tensor(tables["guest"].column("y").to_numpy())
    columns = {name: [c for c in table.column_names if c.startswith("x")] for name, table in tables.items()}
    features = {
        name: torch.tensor(np.stack([table.column(c).to_numpy() for c in columns[name]], axis=1), dtype=torch.float32)
        for name, table in tables.items()
    }
    return features, labels


def main() -> verfedsv.Valuation:
    """Train, record, value."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("runs/credit"))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    features, labels = load(arguments.folder)
    models = {
        name: torch.nn.Sequential(torch.nn.Linear(x.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        for name, x in features.items()
    }
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=1e-3) for name, model in models.items()}
    loss_function = torch.nn.BCEWithLogitsLoss()

    # Without resume=False, a second training would be appended to the first.
    with verfedsv.Recorder(arguments.output, labels=labels, clients=list(models), resume=False) as recorder:  # line 1
        for epoch in range(arguments.epochs):
            for batch in torch.randperm(len(labels)).split(1000):
                embeddings = {name: model(features[name][batch])[:, 0] for name, model in models.items()}
                recorder.log(batch, embeddings)  # line 2
                loss = loss_function(sum(embeddings.values()), labels[batch].float())
                for optimizer in optimizers.values():
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers.values():
                    optimizer.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

    valuation = verfedsv.value(arguments.output)  # line 3
    for client, share, error in zip(valuation.clients, valuation.shares, valuation.errors / valuation.values.sum()):
        print(f"{client}: {share:.1%} ± {error:.1%} of what was learnt")
    return valuation


if __name__ == "__main__":
    try:
        main()
    except verfedsv.VerfedsvError as error:
        sys.exit(f"error: {error}")
