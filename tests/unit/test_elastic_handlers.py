"""The handlers of the objects of an elastic state: a rank is lost while they save or synchronise; and where copies lie."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler
from hvdlite.errors import PeerLostError


class Uncopied:
    def __deepcopy__(self, memo):
        raise TypeError("cannot be copied")


def test_a_loss_while_objects_save_leaves_all_of_them_as_they_were_saved():
    class Cell:
        number = 1

    class InCell(StateHandler):
        def save(self):
            if lost and self.value is lost[0]:
                raise PeerLostError("rank 1 is gone")  # its save is collective
            self.saved = self.value.number

        def restore(self):
            self.value.number = self.saved

        sync = save

    class Cells(ObjectState):
        def _handler_of(self, value):
            return InCell(value) if isinstance(value, Cell) else None

    lost = []
    cells = [Cell(), Cell()]
    state = Cells(lambda obj: obj, lambda: 0, first=cells[0], second=cells[1])
    for save in (state.save, state.sync):
        for cell in cells:
            cell.number = 2
        lost[:] = [cells[1]]
        with pytest.raises(PeerLostError):
            save()
        state.restore()
        assert [cell.number for cell in cells] == [1, 1]
        lost.clear()
    cells[0].number, state.first = 2, [cells[0], Uncopied()]
    with pytest.raises(TypeError, match="cannot be copied"):
        state.save()
    state.restore()
    assert cells[0].number == 1


def test_copies_of_a_sharded_state_lie_in_host_memory_even_if_it_was_loaded(monkeypatch):
    """Tensors without memory stand for those on a GPU."""
    torch = pytest.importorskip("torch")
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    state = pytest.importorskip("hvdlite.torch.elastic.state")
    sharded = SimpleNamespace(whole_state=lambda *_: nullcontext())
    monkeypatch.setattr(state, "sharded_state_of", lambda _: sharded)
    with fake_tensor.FakeTensorMode():
        param = torch.nn.Parameter(torch.empty(3, device="cuda"))
        optimizer = torch.optim.SGD([param], lr=0.1)
        optimizer.state[param] = {"sums": [torch.empty(3, device="cuda")], "step": torch.empty(()), "name": "x"}
        copied = state.OptimizerStateHandler(optimizer).copied(loaded=True)
    (kept,) = copied["state"].values()
    assert kept["name"] == "x"
    assert [each.device.type for each in (*kept["sums"], kept["step"])] == ["cpu", "cpu"]
    assert kept["step"] is not optimizer.state[param]["step"]
