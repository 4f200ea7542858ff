import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tree_builder.acceptance import AcceptanceTable, as_table

ROWS = [[0.6], [0.5, 0.2], [0.5, 0.15, 0.1]]  # depends on b, like k_seq


def test_vector_with_the_reject_entry():
    table = AcceptanceTable.from_vector([0, 0.6, 0.2, 0.1, 0.1])
    assert table.vectors.tolist() == [[0.6, 0.2, 0.1]]
    assert table.at(5, 2).tolist() == [0.6, 0.2]
    assert table.to_vector() == pytest.approx([0, 0.6, 0.2, 0.1, 0.1])


def test_vector_without_the_reject_entry_loses_no_child():
    table = AcceptanceTable.from_vector([0, 0.6, 0.2, 0.1])
    assert table.vectors.tolist() == [[0.6, 0.2, 0.1]]
    assert table.to_vector() == pytest.approx([0, 0.6, 0.2, 0.1, 0.1])


@pytest.mark.parametrize(
    ("vector", "rates"),
    [
        ([0, 0.7], [0.7]),
        ([0, 1.0], [1.0]),  # a reject entry follows at least one child
        ([0, 1.0, 0.0], [1.0]),
        ([0, 0.0, 1.0], [0.0]),
        ([0, 0.3334, 0.3334, 0.3334], [0.3334, 0.3334]),  # rounded entries
    ],
)
def test_short_and_rounded_vectors(vector, rates):
    assert AcceptanceTable.from_vector(vector).vectors.tolist() == [rates]


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=32), st.booleans())
def test_both_lengths_give_the_same_children(weights, with_reject):
    rates = np.array(weights) / (sum(weights) + 0.5)
    vector = np.array([0, *rates, 1 - rates.sum()], dtype=np.float32)
    table = AcceptanceTable.from_vector(vector if with_reject else vector[:-1])
    assert table.vectors[0] == pytest.approx(rates, rel=1e-5)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([0.7, 0.2, 0.1], "starts with 0"),
        ([], "empty"),
        ([0], "empty"),
        ([0, -0.1, 0.5], r"P\(child 1\) is -0.1"),
        ([0, 0.5, float("nan")], r"P\(child 2\) is nan"),
        ([0, 0.5, float("inf")], r"P\(child 2\) is inf"),
        ([0, 0.8, 0.4], "sums to 1.2"),
        ([[0, 0.5]], "one dimension"),
        (["a"], "not an array of numbers"),
    ],
)
def test_bad_vectors(vector, message):
    with pytest.raises(ValueError, match=message):
        as_table(vector)


def test_a_table_that_depends_on_the_number_of_children():
    table = AcceptanceTable.from_rows(ROWS, provenance={"rule": "k_seq"})
    assert table.vectors is None
    assert table.max_children == 3
    assert [table.at(0, b).tolist() for b in (1, 2, 3)] == ROWS
    assert table.at(0, 0).shape == (0,)
    with pytest.raises(ValueError, match="not one vector"):
        table.to_vector()
    with pytest.raises(ValueError, match="4 children"):
        table.at(0, 4)


def test_depths_beyond_the_last_use_the_last():
    table = AcceptanceTable.from_rates([[0.9, 0.1], [0.5, 0.2]])
    assert table.num_depths == 2
    assert table.at(0, 1).tolist() == [0.9]
    assert table.at(7, 2).tolist() == [0.5, 0.2]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "D, B >= 1"),
        ([[0.5, 0.1]], "row for 1 children has 2 entries"),
        ([[0.5], [0.5]], "row for 2 children has 1 entries"),
        ([[0.5], [0.9, 0.2]], "2 children at depth 0: sums to 1.1"),
        ([[-0.5]], "1 children at depth 0"),
    ],
)
def test_bad_rows(rows, message):
    with pytest.raises(ValueError, match=message):
        AcceptanceTable.from_rows(rows)


def test_bad_arrays():
    with pytest.raises(ValueError, match="beyond the last child"):
        AcceptanceTable(np.full((2, 2), 0.2))
    with pytest.raises(ValueError, match="standard errors"):
        AcceptanceTable.from_rates([0.5, 0.2], standard_errors=[0.1])
    with pytest.raises(ValueError, match="not negative"):
        AcceptanceTable.from_rates([0.5], standard_errors=[-0.1])
    with pytest.raises(ValueError, match="depth 1 has 2 rows"):
        AcceptanceTable.from_depths([ROWS, ROWS[:2]])


def test_rates_are_a_read_only_copy():
    rates = np.array([[0.5]])
    table = AcceptanceTable(rates)
    rates[0, 0] = 0.1
    assert table.at(0, 1).tolist() == [0.5]
    with pytest.raises(ValueError, match="read-only"):
        table.rates[0, 0, 0] = 1


def test_json_keeps_everything(tmp_path):
    errors = [[0.01], [0.01, 0.02], [0.01, 0.02, 0.03]]
    table = AcceptanceTable.from_depths(
        [ROWS, ROWS], [errors, errors], {"rule": "k_seq", "tokens": 1000}
    )
    table.save(tmp_path / "table.json")
    again = AcceptanceTable.load(tmp_path / "table.json")
    assert np.array_equal(again.rates, table.rates)
    assert np.array_equal(again.standard_errors, table.standard_errors)
    assert again.provenance == {"rule": "k_seq", "tokens": 1000}


def test_pt_is_the_upstream_vector(tmp_path):
    AcceptanceTable.from_rates([0.6, 0.3]).save(tmp_path / "vector.pt")
    vector = torch.load(tmp_path / "vector.pt", weights_only=True)
    assert vector.dtype == torch.float32
    assert vector.tolist() == pytest.approx([0, 0.6, 0.3, 0.1])
    assert AcceptanceTable.load(tmp_path / "vector.pt").at(0, 2) == pytest.approx([0.6, 0.3])


def save_as_if_on_cuda(vector, path):
    """A `.pt` whose storage is tagged cuda:0, as upstream scripts wrote on a GPU machine."""
    torch.serialization.register_package(
        1, lambda storage: "cuda:0", lambda storage, location: None
    )
    try:
        torch.save(vector, path)
    finally:
        torch.serialization._package_registry[:] = [
            entry for entry in torch.serialization._package_registry if entry[0] != 1
        ]


def test_a_vector_saved_on_cuda_loads_without_it(tmp_path):
    path = tmp_path / "vector.pt"
    save_as_if_on_cuda(torch.tensor([0, 0.6, 0.3, 0.1]), path)
    assert b"cuda:0" in path.read_bytes()
    assert AcceptanceTable.load(path).at(0, 2) == pytest.approx([0.6, 0.3])


def test_bad_files_name_the_file(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "dict.pt")
    torch.save(torch.tensor([0.5, 0.5]), tmp_path / "first.pt")
    (tmp_path / "other.json").write_text(json.dumps({"format": "latency"}))
    (tmp_path / "empty.json").write_text(json.dumps({"format": "acceptance-table"}))
    flat = {"format": "acceptance-table", "rates": [[0.5]]}
    (tmp_path / "flat.json").write_text(json.dumps(flat))
    for name in ("dict.pt", "first.pt", "other.json", "empty.json", "flat.json", "name.csv"):
        with pytest.raises(ValueError, match=name):
            AcceptanceTable.load(tmp_path / name)
    with pytest.raises(ValueError, match=r"name\.csv"):
        AcceptanceTable.from_rates([0.5]).save(tmp_path / "name.csv")
