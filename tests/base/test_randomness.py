"""Random numbers: a function of where they are used, with the statistics they should have."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from hpgmn.base.randomness import (
    DropRate,
    Noise,
    _mix,
    column_factors,
    dropout,
    signs,
    stable_key,
    step_key,
    text_keys,
)

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def unsigned(number):
    return number & MASK


def signed(number):
    return number - 2**64 if number >= 2**63 else number


def finaliser(bits):
    """SplitMix64's finaliser in Python's unlimited integers, as published."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def keys(*numbers):
    return torch.tensor([stable_key("seed", number) for number in numbers])


def bits_of(tensor):
    """(R, count) hashes as (R, count, 64) zeros and ones."""
    return np.unpackbits(np.ascontiguousarray(tensor.numpy()).view(np.uint8), axis=-1).reshape(
        *tensor.shape, 64
    )


def test_stable_key_never_changes():
    assert stable_key("seed", 0) == 4591403422165004294
    assert stable_key(0, 9, "main") == 874662262473426085
    assert stable_key() == 5694367389426422167


@given(
    st.lists(
        st.tuples(st.text("ab',", max_size=3), st.integers(-5, 5)),
        min_size=2,
        max_size=2,
        unique=True,
    )
)
def test_stable_key_tells_different_parts_apart(pair):
    one, other = (stable_key(*parts) for parts in pair)
    assert one != other
    assert -(2**63) <= one < 2**63


def test_stable_key_does_not_glue_parts_together():
    assert len({stable_key("ab", "c"), stable_key("a", "bc"), stable_key("abc")}) == 3
    assert len({stable_key("1"), stable_key(1), stable_key((1,)), stable_key(1, None)}) == 4


def test_mix_gives_the_published_numbers_of_splitmix64():
    states = torch.tensor([signed(unsigned(GOLDEN * step)) for step in (1, 2, 3)])
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # from seed 0
    assert [unsigned(number) for number in _mix(states).tolist()] == published


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6), st.text("ab.é", max_size=5))
def test_bits_match_the_hash_in_unlimited_integers(key, step, place):
    found = Noise(torch.tensor([key]), step).bits(place, 5)[0].tolist()
    start = unsigned(key + stable_key(place)) ^ unsigned(stable_key("step", step))
    start = finaliser(start)
    expected = [finaliser(unsigned(start + GOLDEN * element)) for element in range(5)]
    assert [unsigned(number) for number in found] == expected


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10**6))
def test_a_step_may_be_the_tensor_of_its_key(key, step):
    keys, place = torch.tensor([key]), torch.tensor(step_key(step))
    found = Noise(keys, place).bits("place", 3)
    assert torch.equal(found, Noise(keys, step).bits("place", 3))
    assert place.item() == step_key(step)  # the hash works in place, but not on the caller's key


def test_the_same_place_gives_the_same_numbers_whatever_was_drawn_before():
    fresh, used = Noise(keys(0, 1), 7), Noise(keys(0, 1), 7)
    used.uniform("elsewhere", (100,))
    used.keep("here", (3, 5), DropRate([0.5, 0.5]))
    assert torch.equal(fresh.uniform("here", (3, 5)), used.uniform("here", (3, 5)))
    assert torch.equal(used.keys, keys(0, 1))


def test_a_replica_alone_draws_what_it_draws_among_ten():
    everyone = keys(*range(10))
    rates = [0.05 * replica for replica in range(10)]
    together = Noise(everyone, 3)
    x = torch.randn(10, 4, 7, generator=torch.Generator().manual_seed(0))
    for replica in range(10):
        alone = Noise(everyone[replica : replica + 1], 3)
        rate = DropRate(rates[replica : replica + 1])
        assert torch.equal(alone.uniform("a", (4, 7))[0], together.uniform("a", (4, 7))[replica])
        assert torch.equal(
            alone.keep("a", (4, 7), rate)[0], together.keep("a", (4, 7), DropRate(rates))[replica]
        )
        assert torch.equal(
            dropout(x[replica : replica + 1], rate, alone, "b")[0],
            dropout(x, DropRate(rates), together, "b")[replica],
        )


def test_seed_place_step_and_element_each_give_other_numbers():
    draws = [
        Noise(keys(seed), step).uniform(place, (50,)).flatten()
        for seed in (0, 1)
        for step in (0, 1, "initial values", torch.tensor(1))
        for place in ("first", "second")
    ]
    numbers = torch.cat(draws)
    assert numbers.unique().numel() == numbers.numel()


@pytest.mark.parametrize("count", [1, 3])
def test_an_empty_draw_is_empty(count):
    noise = Noise(keys(*range(count)))
    assert noise.uniform("x", (0, 3)).shape == (count, 0, 3)
    assert noise.keep("x", (2, 0), DropRate([0.5] * count)).shape == (count, 2, 0)


def test_uniform_numbers_fill_the_unit_interval_evenly():
    draws = Noise(keys(0, 1, 2, 3)).uniform("place", (50_000,)).double().numpy()
    assert draws.min() >= 0
    assert draws.max() < 1
    for replica in draws:
        count = replica.size
        assert abs(replica.mean() - 0.5) < 4 * math.sqrt(1 / 12 / count)
        assert abs(replica.var() - 1 / 12) < 4 * math.sqrt(1 / 180 / count)
        observed = np.bincount((replica * 64).astype(int), minlength=64)
        assert scipy.stats.chisquare(observed).pvalue > 1e-3


def test_steps_and_places_are_uncorrelated():
    count = 50_000
    draws = np.stack(
        [
            Noise(keys(0), step).uniform(place, (count,)).double().numpy()[0]
            for step in (1, 2, 3)
            for place in ("attributes", "attributes 2")
        ]
    )
    correlations = np.corrcoef(draws)[np.triu_indices(6, 1)]
    assert (abs(correlations) < 4 / math.sqrt(count)).all()


def test_keys_that_differ_in_one_bit_share_half_of_the_bits():
    base = stable_key("seed", 0)
    near = [base, *(signed(unsigned(base) ^ (1 << bit)) for bit in range(64))]
    found = bits_of(Noise(torch.tensor(near), 1).bits("place", 100))  # (65, 100, 64)
    shares = (found[1:] == found[:1]).mean(axis=(1, 2))
    assert (abs(shares - 0.5) < 4.5 * 0.5 / math.sqrt(6400)).all()


def test_each_replica_keeps_its_own_share():
    rates = [0.0, 0.01, 0.1, 0.37, 0.5, 0.8, 0.99]
    kept = Noise(keys(*range(len(rates)))).keep("place", (100, 1000), DropRate(rates))
    for rate, mask in zip(rates, kept, strict=True):
        for lane in range(4):  # each hash decides four elements
            part = mask.flatten()[lane::4].double()
            spread = math.sqrt(rate * (1 - rate) / part.numel())
            assert abs(part.mean().item() - (1 - rate)) <= 4 * spread + 2**-17
    assert kept[0].all()


@pytest.mark.parametrize("width", [1, 3, 4, 6, 64])
def test_some_rows_are_kept_as_among_all_rows(width):
    keys, rate = torch.tensor([3, 4]), DropRate([0.3, 0.6])
    whole = Noise(keys, 7).keep("place", (9, width), rate)
    rows = torch.tensor([8, 0, 3, 3, 5])
    some = Noise(keys, 7, rows)
    assert torch.equal(some.keep("place", (5, width), rate), whole[:, rows])
    assert some.keep("place", (width,), rate).tolist() == (
        Noise(keys, 7).keep("place", (width,), rate).tolist()
    )
    nothing = Noise(keys, 7, rows[:0]).keep("place", (0, width), rate)
    assert nothing.shape == (2, 0, width)


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=4))
def test_scale_makes_the_expectation_exact(rates):
    rate = DropRate(rates)
    lanes = np.arange(-32768, 32768)  # every value a lane can have, each equally likely
    for wanted, threshold, scale in zip(rates, rate.threshold, rate.scale, strict=True):
        share = (lanes >= threshold.item()).mean()
        assert 0 < share <= 1
        assert share == pytest.approx(1 - wanted, abs=2**-16)
        assert share * scale.item() == pytest.approx(1, rel=1e-7)
    assert rate.is_zero == all(abs(wanted) <= 2**-17 for wanted in rates)


@given(
    st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9]), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), max_size=3),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_dropout_is_the_explicit_mask_forwards_and_backwards(rates, shape, dtype):
    noise, rate = Noise(keys(*range(len(rates))), 5), DropRate(rates)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(rates), *shape, generator=generator, dtype=dtype).requires_grad_()
    upstream = torch.randn(x.shape, generator=generator, dtype=dtype)

    found = dropout(x, rate, noise, "place")
    (found * upstream).sum().backward()

    factor = torch.empty_like(x)
    mask = noise.keep("place", shape, rate)
    for replica in range(len(rates)):
        factor[replica] = mask[replica] * rate.scale[replica]
    torch.testing.assert_close(found, x.detach() * factor)
    torch.testing.assert_close(x.grad, upstream * factor)


def test_without_noise_or_rate_dropout_is_the_input_itself():
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    assert dropout(x, DropRate([0.5, 0.9]), None, "place") is x
    assert dropout(x, DropRate([0.0, 0.0]), Noise(keys(0, 1)), "place") is x


def test_a_replica_without_dropout_is_untouched_among_others():
    x = torch.randn(2, 50, generator=torch.Generator().manual_seed(0))
    found = dropout(x, DropRate([0.0, 0.5]), Noise(keys(0, 1)), "place")
    assert torch.equal(found[0], x[0])
    assert (found[1] == 0).any()


def test_column_factors_are_zero_or_make_up_for_the_dropped():
    noise, rate = Noise(keys(0, 1, 2), 4), DropRate([0.0, 0.5, 0.75])
    found = column_factors(1000, rate, noise, "place")
    assert found is not None
    kept = noise.keep("place", (1000,), rate)
    expected = [
        [scale if keep else 0.0 for keep in row] for row, scale in zip(kept, (1, 2, 4), strict=True)
    ]
    assert found.tolist() == expected
    assert found[0].tolist() == [1.0] * 1000
    assert 0 < kept[2].sum() < kept[1].sum() < 1000


def test_without_noise_or_rate_there_are_no_column_factors():
    assert column_factors(5, DropRate([0.5]), None, "place") is None
    assert column_factors(5, DropRate([0.0]), Noise(keys(0)), "place") is None


# Names and their random directions.


def key_by_hand(name):
    """:func:`text_keys` of one name in Python's unlimited integers."""
    key = unsigned(stable_key("text"))
    for place, character in enumerate(name, start=1):
        key = finaliser(key ^ (ord(character) + (place << 32)))
    return signed(key)


def test_text_keys_never_change():
    assert text_keys(np.array(["", "0", "ä node"])).tolist() == [
        -3612133996795493666,
        625681815276275750,
        -7405985502045436367,
    ]


@given(st.lists(st.text("ab\u00e4\U0001f600", max_size=5), min_size=1, max_size=5))
def test_text_keys_match_the_hash_written_out(names):
    assert text_keys(np.array(names)).tolist() == [key_by_hand(name) for name in names]


def test_text_keys_of_a_million_names_differ():
    keys = text_keys(np.arange(1_000_000).astype(np.str_))
    assert keys.unique().numel() == 1_000_000


def test_names_with_a_zero_character_inside_differ():
    keys = text_keys(np.array(["ab", "a\0b", "\0ab", "a"]))
    assert keys.unique().numel() == 4


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 150), st.integers(1, 150))
def test_signs_are_the_bits_of_splitmix(key, first, count):
    found = signs(torch.tensor([key]), first, first + count)
    expected = []
    for column in range(first, first + count):
        word = finaliser(unsigned(key + (column // 64 + 1) * GOLDEN))
        expected.append(2.0 * ((word >> column % 64) & 1) - 1)
    assert found.tolist() == [expected]
    assert found.dtype == torch.float32


def test_signs_are_balanced_and_uncorrelated():
    rows = signs(text_keys(np.arange(4000).astype(np.str_)), 0, 200).double().numpy()
    spread = 1 / math.sqrt(4000)
    assert abs(rows.mean(axis=0)).max() < 5 * spread
    between = rows.T @ rows / 4000 - np.eye(200)
    assert abs(between).max() < 6 * spread
    assert between.std() == pytest.approx(spread, rel=0.05)
    nodes = rows[:500] @ rows[:500].T / 200 - np.eye(500)
    assert nodes.std() == pytest.approx(1 / math.sqrt(200), rel=0.05)
