"""The memory of a part: what a step reads and keeps of it."""

import torch

from mtlkit.method.state import State, Stateful

YES, NO = torch.tensor(True), torch.tensor(False)


def test_the_state_of_the_present_tasks_is_read_from_its_places_and_kept_there():
    part = Stateful(3)
    for name, per in (("each", "task"), ("pairs", "pair"), ("steps", "all")):
        part.add_state(name, 0, per=per)
    start = State(each=torch.arange(3), pairs=torch.arange(9).reshape(3, 3), steps=torch.tensor(1))
    part.commit(part.read((0, 1, 2)), start, (0, 1, 2), YES)

    old = part.read((0, 2))
    assert old.each.tolist() == [0, 2]
    assert old.pairs.tolist() == [[0, 2], [6, 8]]
    new = State(
        each=torch.tensor([20, 22]), pairs=torch.tensor([[10, 11], [12, 13]]), steps=torch.tensor(2)
    )
    part.commit(old, new, (0, 2), NO)
    assert part.pairs.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    part.commit(old, new, (0, 2), YES)
    assert part.each.tolist() == [20, 1, 22]
    assert part.pairs.tolist() == [[10, 1, 11], [3, 4, 5], [12, 7, 13]]
    assert part.steps == 2
