import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from verfedsv import InputError
from verfedsv.data.targets import LabelScale, choose_loss
from verfedsv.data.vertical import ClientData, VerticalData, take_rows


def amounts(labels, is_test=None, **options):
    """Return data of one client with these amounts as labels."""
    mask = np.zeros(len(labels), bool) if is_test is None else np.array(is_test)
    return VerticalData((ClientData("a", np.zeros((len(labels), 1))),), np.array(labels, float), 1, mask, **options)


def test_amounts_are_standardised_by_the_training_samples():
    """As scikit-learn's scaler does it, fitted on the training samples alone; restored, they are the amounts."""
    labels = np.random.default_rng(0).normal(2e5, 5e4, 60)
    data = amounts(labels, np.arange(60) >= 40)
    expected = StandardScaler().fit(labels[:40, None]).transform(labels[:, None])[:, 0]
    np.testing.assert_allclose(data.targets, expected, rtol=1e-12)
    np.testing.assert_allclose(data.label_scale.restored(data.targets), labels, rtol=1e-12)
    assert (data.loss, data.width) == ("squared", 1)
    some = take_rows(data, np.arange(10))
    assert some.label_scale == LabelScale(pytest.approx(labels[:10].mean()), pytest.approx(labels[:10].std()))


@pytest.mark.parametrize("label", [0.0, 0.1, 1e9])
def test_amounts_that_are_all_the_same(label):
    """There is nothing to learn, also up to rounding."""
    with pytest.raises(InputError, match=r"all 30 labels to train on are .*must differ"):
        _ = amounts([label] * 30 + [7.0], [False] * 30 + [True]).targets


def test_classes_stay_as_they_are():
    """Only amounts are standardised."""
    data = VerticalData((ClientData("a", np.zeros((3, 1))),), np.array([0, 1, 1]), 2, np.zeros(3, bool))
    assert data.targets is data.labels
    assert data.label_scale == LabelScale(0.0, 1.0)


@pytest.mark.parametrize(
    ("asked", "n_classes", "message"),
    [
        ("squared", 2, "loss 'squared' takes amounts, and the labels are 2 classes: set loss to 'logistic'"),
        ("logistic", 3, "loss 'logistic' takes two classes, and the labels are 3 classes: set loss to 'softmax'"),
        ("logistic", 1, "loss 'logistic' takes two classes, and the labels are amounts: set loss to 'squared'"),
        ("softmax", 1, "and the labels are amounts: set loss to 'squared', or leave it out"),
    ],
)
def test_losses_that_the_labels_do_not_have(asked, n_classes, message):
    """The error names the usual loss."""
    with pytest.raises(InputError, match=message):
        choose_loss(asked, n_classes)


def test_two_classes_may_be_trained_with_softmax():
    """If that is asked for, each class has a number."""
    data = VerticalData((ClientData("a", np.zeros((3, 1))),), np.array([0, 1, 1]), 2, np.zeros(3, bool))
    assert (data.loss, data.width) == ("logistic", 1)
    data = VerticalData(data.clients, data.labels, 2, data.is_test, asked="softmax")
    assert (data.loss, data.width) == ("softmax", 2)
