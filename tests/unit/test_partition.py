from hvdlite.partition import part_of


def test_the_parts_are_in_order_and_the_longer_ones_come_first():
    assert [list(part_of(5, 3, number)) for number in range(3)] == [[0, 1], [2, 3], [4]]
    assert [list(part_of(6, 3, number)) for number in range(3)] == [[0, 1], [2, 3], [4, 5]]


def test_some_parts_are_empty_where_there_are_more_parts_than_things():
    assert [list(part_of(2, 4, number)) for number in range(4)] == [[0], [1], [], []]
    assert [list(part_of(0, 2, number)) for number in range(2)] == [[], []]
