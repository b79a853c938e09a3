"""Vertical training in plain PyTorch, with three lines added so that verfedsv can value its clients.

Three organisations hold columns about the same 48,842 people; the server knows who earns more than 50,000 dollars. The
data are Adult, which ships with the package. It needs torch: pip install '.[torch]'

    python examples/torch_loop.py [--epochs 10] [--output runs/adult-torch]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

import verfedsv
from verfedsv.data import load

COLUMNS = {
    "employer": slice(0, 39),  # age, work class, education
    "registry": slice(39, 73),  # marital status, occupation, relationship, race, sex
    "bank": slice(73, 123),  # capital gain and loss, hours per week, native country
}


def main() -> verfedsv.Valuation:
    """Train, record, value."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("runs/adult-torch"))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    adult = load("adult")
    everything, labels = torch.tensor(adult.features.toarray(), dtype=torch.float32), torch.tensor(adult.labels)
    features = {name: everything[:, columns] for name, columns in COLUMNS.items()}
    models = {
        name: torch.nn.Sequential(torch.nn.Linear(x.shape[1], 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
        for name, x in features.items()
    }
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=1e-3) for name, model in models.items()}
    loss_function = torch.nn.BCEWithLogitsLoss()

    # Without resume=False, a second training would be appended to the first.
    with verfedsv.Recorder(arguments.output, labels=labels, clients=list(models), resume=False) as recorder:  # line 1
        for epoch in range(arguments.epochs):
            for batch in torch.randperm(len(labels)).split(4000):
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
    for client, share, (low, high) in zip(valuation.clients, valuation.shares, valuation.share_bounds):
        print(f"{client}: {share:.1%} of what was learnt, between {low:.1%} and {high:.1%}")
    return valuation


if __name__ == "__main__":
    try:
        main()
    except verfedsv.VerfedsvError as error:
        sys.exit(f"error: {error}")
