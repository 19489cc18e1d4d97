"""Where two paths part, against whole sets of ancestors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipinit.probing.adds import judge, part
from skipinit.probing.operations import Kind, Node


@st.composite
def graphs(draw):
    """Nodes in time order, each with up to three earlier parents."""
    nodes = [Node(0, Kind.INPUT)]
    for order in range(1, draw(st.integers(2, 25))):
        parents = draw(st.lists(st.sampled_from(nodes), max_size=3, unique_by=id))
        nodes.append(Node(order, draw(st.sampled_from([Kind.LINEAR, Kind.OTHER])), tuple(parents)))
    return nodes


def ancestors(node):
    return {node}.union(*(ancestors(parent) for parent in node.parents))


@given(graphs(), st.data())
def test_part_equals_the_difference_of_all_ancestors(nodes, data):
    a, b = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique_by=id))
    only_a, only_b, fork = part(a, b)
    of_a, of_b = ancestors(a), ancestors(b)
    assert set(only_a) == of_a - of_b
    assert set(only_b) == of_b - of_a
    assert [node.order for node in only_a] == sorted(node.order for node in only_a)
    common = of_a & of_b
    assert fork is (max(common, key=lambda node: node.order) if common else None)


@given(graphs(), st.data())
def test_judgement_does_not_depend_on_the_order_of_the_operands(nodes, data):
    a, b = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique_by=id))
    one, other = judge(a, b, call=0), judge(b, a, call=0)
    if isinstance(one, str):
        assert one == other
    else:
        assert one.skip == 1 - other.skip
        assert one.branch_path == other.branch_path


def test_cost_is_that_of_the_block_not_of_the_network():
    class Counted(Node):
        looked_at = 0

        def __getattribute__(self, name):
            if name == "parents":
                Counted.looked_at += 1
            return super().__getattribute__(name)

    x: Node = Counted(0, Kind.INPUT)
    for order in range(1, 10_000):
        x = Counted(order, Kind.LINEAR, (x,))
    branch = Counted(10_001, Kind.LINEAR, (Counted(10_000, Kind.ACTIVATION, (x,)),))
    assert judge(x, branch, call=0).skip == 0
    assert Counted.looked_at < 10
