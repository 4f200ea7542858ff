"""KVCache: what is written where, and what compaction keeps."""

import pytest
import torch

from model_fi import KVCache


def make_cache(**changes):
    sizes = {"num_layers": 2, "num_kv_heads": 3, "slots": 10, "head_dim": 4}
    return KVCache(**{**sizes, **changes}, dtype=torch.float32, device="cpu")


def numbered(cache):
    """Fill every slot with its own number (keys) and minus it (values)."""
    slots = torch.arange(cache.slots, dtype=torch.float32)
    cache.k.copy_(slots[:, None])
    cache.v.copy_(-slots[:, None])
    return cache


def test_new_cache_is_finite_zeros_of_the_promised_shape():
    cache = make_cache()
    assert cache.k.shape == cache.v.shape == (2, 3, 10, 4)
    assert not cache.k.any()
    assert not cache.v.any()
    assert cache.num_bytes == 2 * 2 * 3 * 10 * 4 * 4


def test_write_reaches_its_layer_and_slots_only():
    cache = make_cache()
    k, v = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    cache.write(1, torch.tensor([7, 2]), k, v)
    torch.testing.assert_close(cache.k[1, :, 7], k[0])
    torch.testing.assert_close(cache.v[1, :, 2], v[1])
    assert not cache.k[0].any()
    untouched = [0, 1, 3, 4, 5, 6, 8, 9]
    assert not cache.k[1, :, untouched].any()
    assert not cache.v[1, :, untouched].any()


def test_same_row_written_twice_to_one_slot():
    cache = make_cache()
    k = torch.randn(1, 3, 4).expand(2, 3, 4)
    cache.write(0, torch.tensor([0, 0]), k, k)
    torch.testing.assert_close(cache.k[0, :, 0], k[0])


@pytest.mark.parametrize("start", [3, torch.tensor(3)], ids=["int", "tensor"])
@pytest.mark.parametrize(
    "source",
    [[3, 5, 8], [3, 4, 5], [5, 4, 3], [4, 5, 6], [3, 6, 6], [1, 2, 3]],
    ids=["forward", "in place", "swap", "overlap", "repeated", "moving up"],
)
def test_compact_reads_everything_before_it_writes(source, start):
    cache = numbered(make_cache())
    cache.compact(torch.tensor(source), start)
    expected = list(range(10))
    expected[3:6] = source
    slots = torch.tensor(expected, dtype=torch.float32)
    assert torch.equal(cache.k, slots[:, None].expand_as(cache.k))
    assert torch.equal(cache.v, -slots[:, None].expand_as(cache.v))


def test_truncate_forgets_the_tail_and_reset_everything():
    cache = numbered(make_cache())
    cache.truncate(4)
    assert torch.equal(cache.k[0, 0, :, 0], torch.tensor([0.0, 1, 2, 3, 0, 0, 0, 0, 0, 0]))
    cache.reset()
    assert not cache.k.any()
    with pytest.raises(ValueError, match="11"):
        cache.truncate(11)


def test_reset_clears_a_nan():
    """A poisoned slot would spoil every later pass: zero times NaN is NaN."""
    cache = make_cache()
    cache.k[0, 0, 3] = torch.nan
    cache.reset()
    assert torch.isfinite(cache.k).all()


def test_storage_is_never_replaced():
    cache = make_cache()
    address = cache.k.data_ptr()
    cache.write(0, torch.tensor([1]), torch.randn(1, 3, 4), torch.randn(1, 3, 4))
    cache.compact(torch.tensor([1, 2]), 4)
    cache.reset()
    assert cache.k.data_ptr() == address


def test_layers_on_two_devices_are_two_blocks():
    devices = ["cpu", "cpu", "meta"]
    cache = KVCache(3, 2, 8, 4, torch.float32, devices)
    assert [cache.layer(i)[0].device.type for i in range(3)] == devices
    cache.write(1, torch.tensor([3]), torch.ones(1, 2, 4), torch.ones(1, 2, 4))
    cache.compact(torch.tensor([3]), 0)
    assert cache.layer(1)[0][:, 0].all()
    with pytest.raises(ValueError, match="several devices"):
        _ = cache.k


@pytest.mark.parametrize("name", ["num_layers", "num_kv_heads", "slots", "head_dim"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(ValueError, match=name):
        make_cache(**{name: 0})


def test_a_device_per_layer():
    with pytest.raises(ValueError, match="2 devices for 3 layers"):
        KVCache(3, 2, 8, 4, torch.float32, ["cpu", "cpu"])
