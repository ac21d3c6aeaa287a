"""Running statistics against numpy on the data in one piece."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.agents.normalizer import (
    Moments,
    RunningMoments,
    batch_moments,
    init_moments,
    merge_blocks,
    normalize,
    standard_deviation,
    update_moments,
)


def stacked(parts: list[np.ndarray]) -> Moments:
    """Moments of samples ``[D, n]`` a block, blocks first."""
    found = [batch_moments(jnp.asarray(x), jnp.ones(x.shape[1])) for x in parts]
    return Moments(*(jnp.stack(leaves) for leaves in zip(*found, strict=True)))


def test_moments_by_hand_and_with_a_masked_sample():
    x = jnp.array([[1.0, 2.0, 6.0, 100.0], [0.0, 0.0, 3.0, -7.0]])
    moments = batch_moments(x, jnp.array([1.0, 1.0, 1.0, 0.0]))
    assert float(moments.samples) == 3
    np.testing.assert_allclose(moments.mean, [3.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(moments.m2, [14.0, 6.0], rtol=1e-6)


def test_four_blocks_at_0_10_20_30_have_the_variance_between_them():
    rng = np.random.default_rng(0)
    parts = [rng.normal(10.0 * r, 1.0, (3, 256)).astype(np.float32) for r in range(4)]
    running = update_moments(init_moments(3), merge_blocks(stacked(parts)))
    together = np.concatenate(parts, axis=1).astype(np.float64)
    assert int(running.samples) == 1024
    np.testing.assert_allclose(running.mean, together.mean(axis=1), rtol=1e-5)
    variance = np.asarray(running.m2) / 1024
    np.testing.assert_allclose(variance, together.var(axis=1), rtol=1e-5)
    # 1 within a block and 125 = 10^2 (2.25 + 0.25) / 2 between the blocks.
    np.testing.assert_allclose(variance, 126.0, rtol=0.02)
    np.testing.assert_allclose(standard_deviation(running), np.sqrt(variance), rtol=1e-5)


@pytest.mark.parametrize("blocks", [1, 2, 4, 8])
def test_any_split_into_blocks_gives_the_same(blocks: int):
    x = np.random.default_rng(1).normal(3.0, 2.0, (2, 64)).astype(np.float32)
    merged = merge_blocks(stacked(np.split(x, blocks, axis=1)))
    assert float(merged.samples) == 64
    np.testing.assert_allclose(merged.mean, x.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(merged.m2, x.var(axis=1) * 64, rtol=1e-5)


def test_blocks_of_unlike_counts_are_weighted_by_them():
    parts = [np.array([[0.0]], np.float32), np.full((1, 99), 100.0, np.float32)]
    merged = merge_blocks(stacked(parts))
    assert float(merged.samples) == 100
    assert float(merged.mean[0]) == pytest.approx(99.0)
    assert float(merged.m2[0]) == pytest.approx(99.0**2 + 99.0, rel=1e-6)


def test_ten_empty_rounds_change_nothing_and_then_only_new_data_count():
    rng = np.random.default_rng(2)
    old, new = (rng.normal(m, 1.0, (2, 50)).astype(np.float32) for m in (0.0, 5.0))
    first = update_moments(init_moments(2), merge_blocks(stacked([old])))
    running = first
    nothing = batch_moments(jnp.ones((2, 4)), jnp.zeros(4))
    for _ in range(10):
        running = update_moments(running, nothing)
    for before, after in zip(first, running, strict=True):
        np.testing.assert_array_equal(before, after)
    running = update_moments(running, merge_blocks(stacked([new])))
    both = np.concatenate([old, new], axis=1)
    assert running.sample_words.tolist() == [0, 100]
    np.testing.assert_allclose(running.mean, both.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(np.asarray(running.m2) / 100, both.var(axis=1), rtol=1e-5)


def test_merging_blocks_without_data_yields_no_nan():
    merged = merge_blocks(Moments(jnp.zeros(2), jnp.zeros((2, 3)), jnp.zeros((2, 3))))
    assert float(merged.samples) == 0
    assert np.all(np.isfinite(merged.mean)) and np.all(np.isfinite(merged.m2))


def test_the_count_is_carried_into_the_high_word():
    running = RunningMoments(
        jnp.array([0, 2**32 - 3], jnp.uint32), jnp.zeros(1), jnp.full(1, 2.0**32)
    )
    after = update_moments(running, batch_moments(jnp.ones((1, 5)), jnp.ones(5)))
    assert after.sample_words.tolist() == [1, 2]
    assert float(after.samples) == 2.0**32
    assert float(standard_deviation(after)[0]) == pytest.approx(1.0, rel=1e-5)
    # Past 2^24 float32 cannot count single samples, but the words can.
    for _ in range(3):
        after = update_moments(after, batch_moments(jnp.ones((1, 1)), jnp.ones(1)))
    assert after.sample_words.tolist() == [1, 5]


def test_normalize_standardises_clips_and_leaves_alone_without_data():
    x = jnp.array([[1.0, 3.0, 100.0]])
    np.testing.assert_array_equal(normalize(init_moments(1), x), x)
    running = update_moments(init_moments(1), batch_moments(jnp.array([[0.0, 2.0]]), jnp.ones(2)))
    np.testing.assert_allclose(normalize(running, x), [[0.0, 2.0, 10.0]], atol=1e-6)
    np.testing.assert_allclose(normalize(running, -x), [[-2.0, -4.0, -10.0]], atol=1e-6)
    np.testing.assert_allclose(normalize(running, x, clip=1.5), [[0.0, 1.5, 1.5]], atol=1e-6)


def test_a_constant_feature_is_not_divided_by_zero():
    running = update_moments(init_moments(1), batch_moments(jnp.full((1, 8), 4.0), jnp.ones(8)))
    assert float(normalize(running, jnp.array([[4.0]]))[0, 0]) == 0.0
    assert np.isfinite(normalize(running, jnp.array([[4.1]]))).all()
