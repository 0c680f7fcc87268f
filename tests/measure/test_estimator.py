"""The estimate: against a second implementation on real slices, and what must hold exactly."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from orderproof.measure.estimator import Estimate, SliceTable, degrees_of_freedom, estimate, t_upper
from orderproof.measure.verdict import Rule
from tests.support.slice_traces import table_of
from tests.support.slice_trials import SCENARIOS, trials_of

# log gain, standard error, degrees of freedom: by an implementation from another hand, on the same traces
SECOND_HAND = {
    ("m128", 2): (0.25235078831884206, 0.058563137162023174, 4.883728850642646),
    ("m128", 3): (0.22589743115400815, 0.04179122736062602, 10.852628391402188),
    ("m128", 4): (0.20940312012644713, 0.03387696979162227, 16.888005585087647),
    ("m128", 5): (0.20433416911141664, 0.027695771746319865, 22.885449029888207),
    ("m64", 2): (0.24072121230243587, 0.027104491262424885, 10.550654212600392),
    ("m64", 3): (0.21798044531287417, 0.02788232928611088, 22.42787488098503),
    ("m64", 4): (0.20627201744287552, 0.021679476063055564, 34.317580035818295),
    ("m32", 2): (0.19534645737590756, 0.06406845622712437, 19.767260533496046),
    ("m32", 3): (0.20620876576341549, 0.04214910872057206, 43.94734948746154),
    ("m32", 4): (0.22800075039898762, 0.030665647023390245, 67.99825974428809),
}


def a_table(blocks: int = 4, strata: int = 6, seed: int = 0) -> SliceTable:
    """Noisy slices of unequal work."""
    rng = np.random.default_rng(seed)
    shape = (blocks, strata)
    work = np.broadcast_to(rng.uniform(1, 3, strata), shape)
    control_work = rng.permuted(work, axis=1)
    seconds = [w * np.exp(rng.normal(0, 0.1, shape)) for w in (work / 1.1, control_work)]
    return SliceTable(*seconds, work, control_work, rng.choice([-1.0, 1.0], shape))


def figures(seen: Estimate) -> tuple[float, float, float]:
    return float(seen.log_gain), float(seen.se), float(seen.degrees)


@pytest.mark.parametrize(("trace", "blocks"), SECOND_HAND)
def test_estimates_are_those_of_a_second_implementation(trace: str, blocks: int) -> None:
    seen = estimate(table_of(trace).until(blocks))
    assert figures(seen) == pytest.approx(SECOND_HAND[trace, blocks], rel=1e-12)


@pytest.mark.parametrize(("trace", "blocks"), [("m64", 2), ("m32", 3), ("m128", 3)])
def test_the_traces_show_a_gain_at_the_look_that_promotes_and_not_before(trace: str, blocks: int) -> None:
    rule = Rule()
    for look, level in zip(rule.looks[:2], rule.promote_levels, strict=False):
        faster = estimate(table_of(trace).until(look)).low(level) > np.log1p(rule.margin)
        if look <= blocks:
            assert faster == (look == blocks)


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_swapping_the_arms_turns_the_sign_and_nothing_else(blocks: int) -> None:
    table = a_table(blocks)
    a, b, wa, wb, first = table.arrays
    there, back = estimate(table), estimate(SliceTable(b, a, wb, wa, -first))
    log_gain, se, degrees = figures(there)
    assert figures(back) == pytest.approx((-log_gain, se, degrees), rel=1e-12)
    assert (back.capped_candidate, back.capped_control) == (there.capped_control, there.capped_candidate)


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_neither_the_order_of_blocks_nor_the_unit_of_time_matters(blocks: int) -> None:
    table = a_table(blocks)
    a, b, wa, wb, first = (array[::-1] for array in table.arrays)
    there, back = estimate(table), estimate(SliceTable(1000 * a, 1000 * b, wa, wb, first))
    assert figures(back) == pytest.approx(figures(there), rel=1e-9)


@settings(max_examples=50, deadline=None)
@given(arrays(np.float64, (3, 6), elements=st.floats(0.1, 10)), st.floats(0.5, 2))
def test_a_gain_without_noise_is_found_exactly(seconds: np.ndarray, ratio: float) -> None:
    work = np.ones_like(seconds)
    first = np.where(np.arange(6) < 3, 1.0, -1.0) * np.ones((3, 1))
    seen = estimate(SliceTable(seconds, ratio * seconds, work, work, first), cap=np.inf)
    assert seen.log_gain == pytest.approx(np.log(ratio), abs=1e-12)
    assert seen.se == pytest.approx(0, abs=1e-7)


def test_a_cost_of_going_second_is_no_noise() -> None:
    table = a_table(blocks=8, strata=12)
    second = np.where(table.candidate_first > 0, 1.0, 1.5)
    shifted = replace(table, candidate_s=table.candidate_s * second, control_s=table.control_s * (2.5 - second))
    without = replace(shifted, candidate_first=np.ones_like(second))
    assert estimate(shifted).se < 0.5 * estimate(without).se


def test_lasting_differences_between_strata_are_no_noise() -> None:
    rng = np.random.default_rng(1)
    same = np.ones((5, 12))
    control = np.exp(rng.normal(0, 0.02, (5, 12)))
    uneven = np.exp(rng.normal(0, 0.3, 12))
    first = rng.choice([-1.0, 1.0], (5, 12))
    even, mixed = (estimate(SliceTable(s, control, same, same, first)).se for s in (same, same * uneven))
    assert mixed < 2 * even


def test_up_to_three_blocks_the_larger_standard_error_counts() -> None:
    rng = np.random.default_rng(2)
    same = np.ones((3, 12))
    gains = np.exp(rng.normal(0, 0.3, 12)) * same
    noise = np.exp(rng.normal(0, 0.01, (3, 12)))
    first = rng.choice([-1.0, 1.0], (3, 12))
    table = SliceTable(gains * noise, same, same, same, first)
    longer = SliceTable(*(np.concatenate([array, array]) for array in table.arrays))
    assert estimate(table).se > 5 * estimate(longer).se


def test_the_cap_does_not_know_the_arm_and_limits_what_a_stall_can_do() -> None:
    table = a_table(blocks=5, strata=12)
    stalled = [array.copy() for array in (table.candidate_s, table.control_s)]
    for seconds in stalled:
        seconds[0, 0] *= 50
    one, other = (
        estimate(replace(table, candidate_s=stalled[0])),
        estimate(replace(table, control_s=stalled[1])),
    )
    assert (one.capped_candidate, one.capped_control) == (1, 0)
    assert (other.capped_candidate, other.capped_control) == (0, 1)
    assert abs(one.log_gain - estimate(table).log_gain) < 0.06
    uncapped = estimate(replace(table, candidate_s=stalled[0]), cap=np.inf)
    assert abs(uncapped.log_gain - estimate(table).log_gain) > 0.3


@pytest.mark.parametrize(
    ("effective", "degrees"), [(12.0, 2 * 12 - 1), (6.0, 2 * 6 - 1), (1.0, 2.0)], ids=["equal", "half", "one of all"]
)
def test_degrees_of_freedom_come_from_durations(effective: float, degrees: float) -> None:
    assert degrees_of_freedom(3, 12, np.asarray(effective)) == degrees


def test_many_trials_at_once_are_each_trial_alone() -> None:
    tables = trials_of(SCENARIOS["lengths"], 0.05, 5, blocks=3)
    together = estimate(tables)
    for trial in range(5):
        alone = estimate(SliceTable(*(array[trial] for array in tables.arrays)))
        expected = tuple(float(array[trial]) for array in (together.log_gain, together.se, together.degrees))
        assert figures(alone) == pytest.approx(expected, rel=1e-12)


def test_an_incomplete_block_is_refused() -> None:
    table = a_table()
    with pytest.raises(ValueError, match="complete blocks"):
        replace(table, control_s=table.control_s[:, :-1])
    with pytest.raises(ValueError, match="above zero"):
        estimate(replace(table, control_s=np.where(table.control_s == table.control_s[3, 5], np.nan, table.control_s)))
    with pytest.raises(ValueError, match="needs two"):
        estimate(table.until(1))


def test_the_quantile_is_of_the_upper_tail() -> None:
    assert t_upper(0.025, np.asarray(10.0)) == pytest.approx(2.228138851964939)
