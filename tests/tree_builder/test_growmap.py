import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tree_builder import TreeTopology, load_tree, read_tree, save_tree, shapes

UNEVEN = TreeTopology((-1, 0, 0, 1, 1, 2, 3, 6))


def as_json(growmap):
    return {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in growmap.items()}


def test_decoded_examples_of_the_formats():
    growmap = shapes.independent_chains(4, 2).to_growmap()
    assert growmap["roots"] == [[0], [1, 2, 3, 4], [5, 6, 7, 8]]
    assert growmap["branches"] == [[4], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert growmap["Successors"] == [[1, 2, 3, 4], [5], [6], [7], [8], [], [], [], []]
    assert growmap["depth"].tolist() == [0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert growmap["size"] == 9
    assert growmap["mask"].dtype == growmap["depth"].dtype == torch.int64
    assert UNEVEN.to_growmap()["branches"] == [[2], [2, 1], [1, 0, 0], [1], [0]]


@given(st.from_type(TreeTopology))
def test_round_trip_through_the_six_keys(tree):
    assert TreeTopology.from_growmap(tree.to_growmap()) == tree
    assert TreeTopology.from_growmap(json.loads(json.dumps(as_json(tree.to_growmap())))) == tree


@pytest.mark.parametrize("suffix", [".pt", ".json"])
@pytest.mark.parametrize(
    "tree", [UNEVEN, shapes.chain(1), shapes.kary(32, 3)], ids=lambda t: t.size
)
def test_files_round_trip(tmp_path, suffix, tree):
    path = tmp_path / f"tree{suffix}"
    save_tree(tree, path)
    assert load_tree(path) == load_tree(str(path)) == tree


def test_pt_file_is_a_plain_growmap(tmp_path):
    save_tree(UNEVEN, tmp_path / "tree.pt")
    data = torch.load(tmp_path / "tree.pt", weights_only=True)
    assert list(data) == ["roots", "branches", "Successors", "mask", "depth", "size"]


def test_json_growmap_of_six_keys_is_read(tmp_path):
    (tmp_path / "tree.json").write_text(json.dumps(as_json(UNEVEN.to_growmap())))
    assert load_tree(tmp_path / "tree.json") == UNEVEN


def test_metadata_travels_with_json(tmp_path):
    path = tmp_path / "tree.json"
    save_tree(UNEVEN, path, metadata={"name": "uneven", "built": {"size": 8}})
    assert read_tree(path) == (UNEVEN, {"name": "uneven", "built": {"size": 8}})
    with pytest.raises(ValueError, match="metadata"):
        save_tree(UNEVEN, tmp_path / "tree.pt", metadata={"name": "uneven"})
    with pytest.raises(ValueError, match="'mask'"):
        save_tree(UNEVEN, path, metadata={"mask": 1})


def set_mask(growmap, row, column, value):
    growmap["mask"][row, column] = value


# Each fault, and the words that must name the view and the place.
FAULTS = {
    "size": (lambda g: g.update(size=9), "'size': is 9, expected 8"),
    "depth": (lambda g: g["depth"].__setitem__(6, 2), r"'depth': \[6\] is 2, expected 3"),
    "depth short": (lambda g: g.update(depth=g["depth"][:-1]), "'depth': has 7 entries"),
    "roots": (lambda g: g["roots"][1].reverse(), r"'roots': \[1\] is \[2, 1\]"),
    "branches": (lambda g: g["branches"][2].reverse(), "'branches'"),
    "branches misfit": (lambda g: g["branches"][1].append(1), "'branches': level 1 has 3"),
    "Successors": (lambda g: g["Successors"][1].pop(), "'Successors'"),
    "Successors moved": (lambda g: g["Successors"][2].append(g["Successors"][3].pop()), "'Success"),
    "mask extra": (lambda g: set_mask(g, 7, 2, 1), r"'mask': \[7\]\[2\] is 1, expected 0"),
    "mask missing": (lambda g: set_mask(g, 7, 3, 0), r"'mask': \[7\]\[3\] is 0, expected 1"),
    "mask value": (lambda g: set_mask(g, 4, 4, 2), r"'mask': \[4\]\[4\] is 2"),
    "mask shape": (lambda g: g.update(mask=g["mask"][:, :4]), r"'mask': shape \(8, 4\)"),
    "mask flat": (lambda g: g.update(mask=g["mask"][0]), "'mask': not a matrix"),
    "float ids": (lambda g: g["roots"][1].__setitem__(0, 1.5), "'roots': 1.5 is not an integer"),
    "None": (lambda g: g.update(branches=None), "'branches'"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_wrong_view_is_named(name):
    spoil, message = FAULTS[name]
    growmap = copy.deepcopy(UNEVEN.to_growmap())
    spoil(growmap)
    with pytest.raises(ValueError, match=message) as error:
        TreeTopology.from_growmap(growmap)
    assert "wrong view '" in str(error.value)  # one view is wrong, the others are not accused


@given(st.from_type(TreeTopology), st.from_type(TreeTopology), st.sampled_from(range(6)))
def test_one_view_of_another_tree_is_found_out(tree, other, index):
    growmap, strange = tree.to_growmap(), other.to_growmap()
    key = list(growmap)[index]
    same = as_json(growmap)[key] == as_json(strange)[key]
    growmap[key] = strange[key]
    if same:
        assert TreeTopology.from_growmap(growmap) == tree
    else:
        with pytest.raises(ValueError, match=f"wrong view '{key}'"):
            TreeTopology.from_growmap(growmap)


def test_missing_keys_are_named():
    growmap = UNEVEN.to_growmap()
    del growmap["mask"], growmap["size"]
    with pytest.raises(ValueError, match="missing 'mask', 'size'"):
        TreeTopology.from_growmap(growmap)


def test_depth_first_numbering_is_refused():
    growmap = shapes.independent_chains(2, 2).to_growmap()
    growmap["Successors"] = [[1, 3], [2], [], [4], []]
    growmap["roots"] = [[0], [1, 3], [2, 4]]
    with pytest.raises(ValueError, match="breadth-first"):
        TreeTopology.from_growmap(growmap)


class Unsafe:
    pass


def test_unsafe_and_broken_files_are_refused(tmp_path):
    torch.save({"size": Unsafe()}, tmp_path / "unsafe.pt")
    (tmp_path / "broken.pt").write_bytes(b"not a file")
    (tmp_path / "empty.pt").write_bytes(b"")
    torch.save([1, 2], tmp_path / "list.pt")
    for name in ("unsafe.pt", "broken.pt", "empty.pt"):
        with pytest.raises(ValueError, match=f"{name}: refused"):
            load_tree(tmp_path / name)
    with pytest.raises(ValueError, match=r"list.pt: .*dict"):
        load_tree(tmp_path / "list.pt")


@pytest.mark.parametrize("text", ["{", "[1]", '{"parents": 3}', '{"parents": [0]}', "{}", "\xff"])
def test_bad_json_names_the_file(tmp_path, text):
    path = tmp_path / "bad.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"bad\.json"):
        load_tree(path)


def test_unknown_names(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.json"):
        load_tree(tmp_path / "none.json")
    with pytest.raises(ValueError, match="chain:5"):
        load_tree("tree:5")
    with pytest.raises(ValueError, match=r"\.json or \.pt"):
        save_tree(UNEVEN, tmp_path / "tree.txt")
