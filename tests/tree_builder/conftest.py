from hypothesis import strategies as st

from tree_builder import TreeTopology


@st.composite
def topologies(draw, max_size=20):
    """Random breadth-first trees: sorted random parents."""
    size = draw(st.integers(1, max_size))
    parents = [-1]
    for node in range(1, size):
        parents.append(draw(st.integers(max(parents[-1], 0), node - 1)))
    return TreeTopology(tuple(parents))


st.register_type_strategy(TreeTopology, topologies())
