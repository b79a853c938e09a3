"""The configuration that `verfedsv run --init` writes."""

EXAMPLE = """# A run of verfedsv: `verfedsv run FILE`. Settings that are commented out are defaults or examples, as
# their comments say. To set one, remove the # in front.

[data]
name = "adult"            # ships with the package; `verfedsv data list` shows the others
clients = 8               # the features are split into this many blocks, one per client; see `verfedsv data show adult`
# scale = "standardise"   # for example; each client's own: none (default of data sets by name), standardise (default of
                          # files), unit-rows, standardise-unit-rows
# test = 0.2              # for example: fraction of test samples; else the data set's own test part, or 0.2
# samples = 10000         # for example: use only this many samples
# seed = 0                # default

# A LIBSVM file of your own: in place of name, split between clients in the same way.
# file = "mine.svm.bz2"   # for example; or .svm, .libsvm, .gz; relative to this file
# test_file = "mine-test.svm.bz2"   # for example: test samples, else a fraction of the file (test)

# Files of your own: in place of name and clients, one file per client, joined on a column of ids.
# label = "y"             # for example: the column of the labels
# label_client = "bank"   # for example: the client whose file has it; one without other columns is not valued
# classes = 2             # for example: the number of classes; needed if these are more than 20 numbers
# aligned = false         # default; true: no ids, row k of every file is of the same sample; LIBSVM files need it.
                          # With [server], files have ids all the same, the server's in column id; join --aligned
# [[client]]
# name = "bank"           # for example
# file = "bank.csv"       # for example; or .parquet, .svm, .libsvm; relative to this file
# test_file = "bank-test.csv"   # for example: test samples, of all clients or none; else a fraction of the files
# id = "id"               # default
# columns = ["age", "income"]   # for example; else all but id and label
# [[client]]
# name = "telco"          # for example
# file = "telco.csv"      # for example
# test_file = "telco-test.csv"  # for example

# Artificial clients, as in the paper's experiments:
# [[client]]
# name = "noisy copy"     # for example
# copy_of = "client 1"    # for example
# noise = 0.2             # for example: fraction of the columns that get white noise; default 0
# [[client]]
# name = "random"         # for example
# random_level = 2.0      # for example: columns N(2, 4), as many as the first client has

# Settings of a single client, by name:
# [[client]]
# name = "client 1"       # for example
# batch_size = 3000       # for example; in synchronous training at least that of [training]
# period = 0.02           # for example: seconds between two uploads of this client, in asynchronous training only
# scale = "standardise"   # for example: in place of that in [data]
# rate = 0.1              # for example: in place of that in [training]; it is part of what is agreed
# joins_after = 20        # for example: takes part from round 21 on; else from the start
# leaves_after = 80       # for example: round 80 is its last; else to the end
# misses = [[30, 34], [50, 50]]   # for example: rounds in between that it misses, first and last; or a fraction to be
                          # drawn, such as 0.1
# [[client]]
# name = "client 2"       # for example
# width = 16              # for example: numbers in its embedding, with head = "mlp" only

[model]
kind = "linear"           # or perceptron: two layers, ReLU between them
# hidden = 32             # default, of the perceptron only
# head = "sum"            # default: embeddings are added up; mlp: a network at the server, which needs PyTorch
# width = 8               # default, with head = "mlp" only: numbers in an embedding

# The network at the server, if the head is mlp. Its last layer has an intercept: leave out that of [training].
# [head]
# hidden = [64]           # default: units of its hidden layers
# activation = "gelu"     # default; relu, silu, tanh
# optimizer = "adam"      # default; momentum, sgd
# rate = 0.01             # default

[training]
mode = "synchronous"      # or asynchronous: then replace epochs by duration
# loss = "auto"           # default: logistic for two classes, softmax for more; squared: regression
batch_size = 2837
rate = 0.5
epochs = 10
# rounds = 120            # for example: in place of epochs
# duration = 20.0         # for example: asynchronous, in place of epochs: seconds
# decay = "constant"      # default; or inverse: rate / t
# optimizer = "sgd"       # default: plain gradient descent; or momentum; or adam, with a small rate such as 0.02
# momentum = 0.9          # default, of momentum only
# class_weights = "balanced"   # for example: rare classes count more in training, not in values; or { yes = 5.0 }
intercept = true          # whether the server learns one; else clients may stand in for it, and are paid for that
# seed = 0                # default
# evaluate_every = 20     # default: rounds
# patience = 5            # for example: end after so many evaluations in which the test loss did not fall
# min_improvement = 0.001 # for example: a smaller fall does not count; default 0, with patience only
# period = 0.01           # default, asynchronous only: seconds between two uploads of a client
# stamp_every = 0.04      # default, asynchronous only: seconds from one round to the next
# clock = "virtual"       # default, asynchronous only: as fast as possible, the same each time; or real

[valuation]
# method = "auto"         # default; closed-form, exact, permutation
# semivalue = "shapley"   # default; banzhaf, leave-one-out, beta(a, b), whose values need not sum to the utility
# rank = "auto"           # default: of completion, in synchronous training
# tolerance = 0.001       # default
# regularization = "auto" # default: lambda of completion; auto begins with the paper's 0.1
# seed = 0                # default

# Clients on other machines: `verfedsv serve FILE` here, `verfedsv join` at each of them (docs/deployment.md). Then
# [data] has only label, label_client and what is drawn, only that client has a file, and the others just their names.
# [server]
# address = "0.0.0.0:8443"    # default: where clients dial in
# certificate = "server.crt"  # for example: that of the server, in PEM; verfedsv keys makes it
# key = "server.key"          # for example: its private key
# authority = "ca.crt"        # for example: the certificate of whoever signs those of the clients
# revoked = "revoked.crl"     # for example: the list of revoked certificates, read at every connection
# signing_key = "consortium.key"   # for example: signs the statement at the end; verfedsv keys new makes it
# private = "server-private"  # for example: folder of the aligned ids; default: that of the output, ending in .private
# deadline = 600.0            # default: seconds that a round waits for a client
# if_missing = "stop"         # default; or continue: the round goes on without it
# [[client]]
# name = "hospital"           # for example
# certificate = "City Hosp." # for example: the name in its certificate, or a list of fingerprints; else its name here
# All of them on this machine, each in a process of its own, to try it: `verfedsv up FILE`.
# [up]
# features = { hospital = "hospital.csv" }   # for example: the files of the other clients
# id = "id"                   # default: their column of ids

[output]
folder = "runs/adult"     # relative to this file
"""
