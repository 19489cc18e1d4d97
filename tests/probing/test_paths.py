"""The paths of an addition, against whole sets of ancestors."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skipinit.probing.adds import classify
from skipinit.probing.graph import Kind, Node, split_paths


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
def test_paths_equal_the_difference_of_all_ancestors(nodes, data):
    a, b = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique_by=id))
    only_a, only_b, fork = split_paths(a, b)
    of_a, of_b = ancestors(a), ancestors(b)
    assert set(only_a) == of_a - of_b
    assert set(only_b) == of_b - of_a
    assert [node.order for node in only_a] == sorted(node.order for node in only_a)
    common = of_a & of_b
    assert fork is (max(common, key=lambda node: node.order) if common else None)


@given(graphs(), st.data())
def test_classification_does_not_depend_on_the_order_of_the_operands(nodes, data):
    a, b = data.draw(st.lists(st.sampled_from(nodes), min_size=2, max_size=2, unique_by=id))
    one, other = classify(a, b, call=0), classify(b, a, call=0)
    if isinstance(one, str):
        assert one == other
    else:
        assert one.skip_operand == 1 - other.skip_operand
        assert (one.skip, one.branch) == (other.skip, other.branch)


def test_cost_is_that_of_the_block_not_of_the_network():
    class Counted(Node):
        looked_at = 0

        def __getattribute__(self, name):
            if name == "parents":
                Counted.looked_at += 1
            return super().__getattribute__(name)

    def cost(layers):
        """How many nodes are looked at in a block that comes after so many layers."""
        x: Node = Counted(0, Kind.INPUT)
        for order in range(1, layers):
            x = Counted(order, Kind.LINEAR, (x,))
        branch = Counted(layers + 1, Kind.LINEAR, (Counted(layers, Kind.ACTIVATION, (x,)),))
        Counted.looked_at = 0
        assert classify(x, branch, call=0).skip_operand == 0
        return Counted.looked_at

    assert cost(10_000) == cost(10)
