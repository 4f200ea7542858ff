"""Masks against their definition, slot by slot."""

import pytest
import torch

from model_fi import causal_mask, tree_mask

# Root with children 1 and 2, and a child 3 of node 1.
ANCESTORS = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]], dtype=torch.bool)


def test_tree_mask_as_drawn():
    mask = tree_mask(torch.tensor(4), ANCESTORS, 8)
    drawn = [
        [1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 1, 0, 0],
        [1, 1, 1, 1, 1, 0, 1, 0],
    ]
    assert torch.equal(mask, torch.tensor(drawn, dtype=torch.bool))


@pytest.mark.parametrize("n", [1, 2, 5, 13])
def test_tree_mask_for_every_prefix_length(n):
    bucket = 16
    mask = tree_mask(torch.tensor(n), ANCESTORS, bucket)
    for row in range(4):
        for slot in range(bucket):
            node = slot - (n - 1)
            expected = node < 0 or (node < 4 and bool(ANCESTORS[row, node]))
            assert bool(mask[row, slot]) == expected, (row, slot)


def test_tree_mask_of_some_rows_and_a_tight_bucket():
    mask = tree_mask(torch.tensor(3), ANCESTORS[2:], 4)  # the last two nodes lie outside
    expected = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]], dtype=torch.bool)
    assert torch.equal(mask, expected)


def test_causal_mask():
    mask = causal_mask(torch.tensor([2, 0, 5]), 5)
    expected = [[1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert torch.equal(mask, torch.tensor(expected, dtype=torch.bool))
