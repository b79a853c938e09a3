import numpy as np

from verfedsv.federation.batches import freeze, keep, same


def test_what_cannot_change_is_kept_as_it_is():
    """No copy, and no comparison."""
    batch = freeze(np.arange(3))
    assert keep(batch) is batch
    assert same(keep(batch), batch)


def test_what_may_change_is_copied():
    """An array that can be written to, and a read-only view of one."""
    batch = np.arange(3)
    view = batch.view()
    view.flags.writeable = False
    for given in (batch, view):
        kept = keep(given)
        assert kept is not given
        assert same(kept, given)
    kept = keep(view)
    batch[0] = 7
    assert not same(kept, view)
    assert same(kept, np.array([0, 1, 2]))
