"""Split learning in plain PyTorch, with three lines added so that verfedsv can value its clients.

Three organisations hold columns about the same 48,842 people, and each turns its own into an embedding of its own
width. The server knows who earns more than 50,000 dollars, and has a top model over all embeddings side by side, which
it trains with an optimiser of its own. The data are Adult, which ships with the package. It needs torch:
pip install '.[torch]'

    python examples/split_learning.py [--epochs 10] [--output runs/adult-split]
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
WIDTHS = {"employer": 8, "registry": 8, "bank": 4}


def main() -> verfedsv.Valuation:
    """Train, record, value."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--output", type=Path, default=Path("runs/adult-split"))
    arguments = parser.parse_args()

    torch.manual_seed(0)
    adult = load("adult")
    everything, labels = torch.tensor(adult.features.toarray(), dtype=torch.float32), torch.tensor(adult.labels)
    features = {name: everything[:, columns] for name, columns in COLUMNS.items()}
    models = {name: torch.nn.Linear(x.shape[1], WIDTHS[name]) for name, x in features.items()}
    head = torch.nn.Sequential(torch.nn.Linear(sum(WIDTHS.values()), 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    optimizers = [torch.optim.Adam(part.parameters(), lr=3e-3) for part in (head, *models.values())]
    loss_function = torch.nn.BCEWithLogitsLoss()

    # Without resume=False, a second training would be appended to the first.
    with verfedsv.Recorder(arguments.output, labels, list(models), head=head, resume=False) as recorder:  # line 1
        for epoch in range(arguments.epochs):
            for batch in torch.randperm(len(labels)).split(4000):
                embeddings = {name: model(features[name][batch]) for name, model in models.items()}
                recorder.log(batch, embeddings)  # line 2: before the step, with the head that these embeddings meet
                scores = head(torch.cat(list(embeddings.values()), dim=1))
                loss = loss_function(scores[:, 0], labels[batch].float())
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss.backward()
                for optimizer in optimizers:
                    optimizer.step()
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")

    valuation = verfedsv.value(arguments.output)  # line 3
    for client, share, (low, high) in zip(valuation.clients, valuation.shares, valuation.share_bounds):
        bounds = f", between {low:.1%} and {high:.1%}" if low <= high else ""  # unknown after a few rounds
        print(f"{client}: {share:.1%} of what the clients achieved{bounds}")
    books = valuation.books
    print(f"loss {books.start:.3f} at the start, {books.end:.3f} at the end")
    print(f"the clients lowered it by {books.clients:.3f}, the server's own top model by {books.server:.3f}")
    return valuation


if __name__ == "__main__":
    try:
        main()
    except verfedsv.VerfedsvError as error:
        sys.exit(f"error: {error}")
