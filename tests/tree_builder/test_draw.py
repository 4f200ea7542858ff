import builtins

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tree_builder import TreeTopology, draw, shapes

UNEVEN = TreeTopology((-1, 0, 0, 1, 1, 2, 3, 6))


def test_text():
    assert draw.draw_text(UNEVEN) == "\n".join(
        [
            "0─┬─1─┬─3───6───7",
            "  │   └─4",
            "  └─2───5",
        ]
    )


def test_text_pads_labels_to_columns():
    tree = shapes.from_branches([3, [1, 0, 2]])
    assert draw.draw_text(tree, ["root", "a", "bb", "ccc", "x", "y", "z"]) == "\n".join(
        [
            "root─┬─a─────x",
            "     ├─bb",
            "     └─ccc─┬─y",
            "           └─z",
        ]
    )


def test_one_node():
    assert draw.draw_text(shapes.chain(1)) == "0"
    assert draw.summary(shapes.chain(1)) == "1 node (0 drafted), 1 level, no drafting"


def test_summary():
    assert draw.summary(UNEVEN) == (
        "8 nodes (7 drafted), 5 levels, widest level 3, at most 2 children"
    )
    assert draw.summary(shapes.chain(4)).endswith("a chain")


@given(st.from_type(TreeTopology))
def test_text_has_every_node_once_in_its_column(tree):
    lines = draw.draw_text(tree).splitlines()
    assert len(lines) == sum(not children for children in tree.children)
    words = " ".join(lines).translate(str.maketrans("─┬├└│", "     ")).split()
    assert sorted(map(int, words)) == list(range(tree.size))


@pytest.mark.parametrize("suffix", [".svg", ".png"])
@pytest.mark.parametrize("tree", [UNEVEN, shapes.chain(1), shapes.kary(2, 6)], ids=lambda t: t.size)
def test_pictures(tmp_path, suffix, tree):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"tree{suffix}"
    draw.draw_picture(tree, path, values=[1 / (1 + depth) for depth in tree.depth])
    head = path.read_bytes()[:200]
    assert head.startswith(b"\x89PNG") if suffix == ".png" else b"<?xml" in head


def test_parents_sit_over_the_middle_of_their_children():
    assert draw._positions(shapes.kary(2, 3)) == [1.5, 0.5, 2.5, 0.0, 1.0, 2.0, 3.0]


def test_bad_pictures(tmp_path):
    with pytest.raises(ValueError, match=r"\.gif"):
        draw.draw_picture(UNEVEN, tmp_path / "tree.gif")
    with pytest.raises(ValueError, match="2 values for a tree of 8"):
        draw.draw_picture(UNEVEN, tmp_path / "tree.png", values=[1, 1])
    with pytest.raises(ValueError, match="1 labels"):
        draw.draw_text(UNEVEN, ["a"])


def test_without_matplotlib_the_error_says_what_to_install(tmp_path, monkeypatch):
    real_import = builtins.__import__

    def no_matplotlib(name, *args, **kwargs):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_matplotlib)
    with pytest.raises(ImportError, match="experiments"):
        draw.draw_picture(UNEVEN, tmp_path / "tree.png")
