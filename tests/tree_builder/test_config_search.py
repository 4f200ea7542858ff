import json

import pytest
import torch

from tree_builder import shapes
from tree_builder.acceptance import AcceptanceTable
from tree_builder.config_search import SearchConfig, search_config

DEMO = {
    "acceptance_rate_vector": "vector.pt",
    "max_depth": 10,
    "max_budget": 128,
    "draft_time": 0.3,
    "valid_budget": [1, 2, 4, 8, 16, 32],
    "target_time": [10, 10, 10, 12, 14, 18],
    "dst": "tree.pt",
}
VECTOR = [0, 0.6342, 0.1079, 0.0570, 0.0225, 0.0110, 0.0090, 0.0060]


def write(folder, vector=VECTOR, **changes):
    torch.save(torch.tensor(vector), folder / "vector.pt")
    (folder / "config.json").write_text(json.dumps({**DEMO, **changes}))
    return folder / "config.json"


def test_the_demo(tmp_path):
    config = SearchConfig.load(write(tmp_path))
    result = search_config(config)
    assert (result.budget, result.levels) == (4, 4)
    assert result.tree == shapes.chain(4)
    assert result.speed_up == pytest.approx(2.0459, abs=1e-4)
    assert result.expected_tokens / result.time_per_token == pytest.approx(
        result.expected_tokens**2 / 11.2
    )
    assert str(config.destination) == "tree.pt"


def test_no_drafting_is_an_answer(tmp_path):
    result = search_config(SearchConfig.load(write(tmp_path, draft_time=50)))
    assert (result.budget, result.levels, result.tree) == (1, 1, shapes.chain(1))
    # upstream counts a draft call even there: below 1, plain decoding is faster
    assert result.speed_up == pytest.approx(10 / 60)


def test_a_table_may_stand_for_the_vector(tmp_path):
    AcceptanceTable.from_rows([[0.8], [0.3, 0.3]]).save(tmp_path / "table.json")
    path = write(tmp_path, acceptance_rate_vector=str(tmp_path / "table.json"))
    assert search_config(SearchConfig.load(path)).tree.max_children == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target_time": [10, 10]}, "6 entries, target_time 2"),
        ({"valid_budget": [1, 2, 4, 8, 16, 256]}, r"valid_budget 256: must be in 1\.\.128"),
        ({"valid_budget": [0, 2, 4, 8, 16, 32]}, "valid_budget 0"),
        ({"valid_budget": [], "target_time": []}, "empty"),
        ({"valid_budget": 4}, "must be a list"),
        ({"valid_budget": [1.5, 2, 4, 8, 16, 32]}, "expected int, got 1.5"),
        ({"target_time": [10, 10, 10, 12, 14, 0]}, "budget 32: must be positive"),
        ({"draft_time": -1}, "draft_time"),
        ({"draft_time": "0.3"}, "'draft_time': expected float"),
        ({"max_depth": 0}, "max_depth 0"),
        ({"max_budget": 0}, "max_budget 0"),
        ({"acceptance_rate_vector": 3}, "expected str"),
    ],
)
def test_bad_configurations(tmp_path, changes, message):
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        SearchConfig.load(path)


def test_bad_files(tmp_path):
    path = write(tmp_path, vector=[0.6, 0.4])
    with pytest.raises(ValueError, match=r"vector\.pt.*starts with 0"):
        SearchConfig.load(path)
    path.write_text(json.dumps({"max_depth": 3}))
    with pytest.raises(ValueError, match="missing 'acceptance_rate_vector', 'max_budget'"):
        SearchConfig.load(path)
