"""A rank is lost while the objects of an elastic state are saved or synchronised: none of them keeps what is new."""

import pytest

from hvdlite.elastic import ObjectState
from hvdlite.elastic.kept import StateHandler
from hvdlite.errors import PeerLostError


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
