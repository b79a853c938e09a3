"""The configuration that `verfedsv run --init` writes."""

EXAMPLE = """# A run of verfedsv: `verfedsv run FILE`. Settings behind a # are defaults, or show what could be there.

[data]
name = "adult"            # adult (ships with the package), web, covtype, rcv1, sector; see `verfedsv data list`
clients = 8               # the features are split into so many blocks, one a client
# test = 0.2              # part of the samples to test on; by default the data set's own test part, if it has one
# samples = 10000         # take so many samples only
# scale = "none"          # each client's own: none, standardise, unit-rows
# seed = 0

# Files of your own in place of a name: one per client, joined on a column of ids.
# label = "y"
# label_client = "bank"
# [[client]]
# name = "bank"
# file = "bank.csv"       # or .parquet; relative to this file
# id = "id"
# columns = ["age", "income"]   # all others by default
# [[client]]
# name = "telco"
# file = "telco.csv"

# Artificial clients, as in the paper's experiments:
# [[client]]
# name = "noisy copy"
# copy_of = "client 1"
# noise = 0.2             # part of the columns that white noise is added to
# [[client]]
# name = "random"
# random_level = 2.0      # columns N(2, 4), as many as the first client has
# period = 0.02           # seconds between two uploads of this client, in asynchronous training

[model]
kind = "linear"           # or perceptron: two layers, ReLU between them (needs torch)
# hidden = 32

[training]
mode = "synchronous"      # or asynchronous
batch_size = 2837
rate = 0.2
epochs = 20
# rounds = 360            # in place of epochs
# duration = 20.0         # asynchronous: seconds, in place of epochs
# decay = "constant"      # or inverse: rate / t
# intercept = false       # whether the server learns one
# seed = 0
# evaluate_every = 20     # rounds or time stamps
# period = 0.01           # asynchronous: seconds between two uploads of a client
# stamp_every = 0.04      # asynchronous: seconds between two time stamps
# clock = "virtual"       # asynchronous: virtual (as fast as it goes, the same each time) or real

[valuation]
# method = "auto"         # closed-form, exact, permutation
# rank = "auto"           # of completion, in synchronous training
# tolerance = 0.001
# regularization = "auto"  # lambda of completion; auto begins with the paper's 0.1
# seed = 0

[output]
folder = "runs/adult"     # relative to this file
"""
