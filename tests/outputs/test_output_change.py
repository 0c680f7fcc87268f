"""How far outputs moved: what is counted, and, by simulation, how often the three answers are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit
from scipy.stats import binom

from orderproof.outputs.output_change import TOLERANCE, OutputChange, compare, detectable_excess
from orderproof.outputs.passes import OutputsError, PassOutputs, agreement_matrix, shuffle_disagreement


def outputs(pass_id: str, arm: str, digests: Sequence[int], scores: Sequence[float] | None = None) -> PassOutputs:
    scored = None if scores is None else np.array(scores, np.float64)
    return PassOutputs(pass_id, arm, np.array(digests, np.int64), scored)


def trial_of(control: NDArray[np.int64], candidate: NDArray[np.int64]) -> list[PassOutputs]:
    """Passes from digests [passes, prompts] of either arm."""
    arms = (("control", control), ("candidate", candidate))
    return [outputs(f"{arm}{number}", arm, row) for arm, rows in arms for number, row in enumerate(rows)]


def identical(prompts: int, passes: int = 5) -> list[PassOutputs]:
    same = np.tile(np.arange(prompts), (passes, 1))
    return trial_of(same, same)


# What is counted


def test_disagreement_is_averaged_over_pairs_of_passes() -> None:
    dice = np.random.default_rng(7)
    control, candidate = dice.integers(0, 3, (4, 90)), dice.integers(0, 4, (3, 90))
    change = compare(trial_of(control, candidate), np.arange(90), 8, vacuous=False)
    assert change.d_aa == pytest.approx(np.mean([(x != y).mean() for x, y in combinations(control, 2)]))
    assert change.d_bb == pytest.approx(np.mean([(x != y).mean() for x, y in combinations(candidate, 2)]))
    assert change.d_ab == pytest.approx(np.mean([(x != y).mean() for x, y in product(control, candidate)]))
    assert change.excess == change.d_ab - change.d_aa
    assert (change.prompts, change.control_passes, change.candidate_passes) == (90, 4, 3)


def test_large_files_are_counted_in_chunks_to_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(9)
    passes = trial_of(dice.integers(0, 3, (3, 100)), dice.integers(0, 3, (3, 100)))
    whole = compare(passes, np.arange(100), 8, vacuous=False)
    monkeypatch.setattr("orderproof.outputs.disagreement.CHUNK_PROMPTS", 7)
    assert compare(passes, np.arange(100), 8, vacuous=False) == whole


def test_the_passes_jackknife_is_that_of_the_textbook() -> None:
    dice = np.random.default_rng(10)
    passes = trial_of(dice.integers(0, 3, (5, 64)), dice.integers(0, 3, (4, 64)))
    variance = 0.0
    for arm, count in (("control", 5), ("candidate", 4)):
        left = [
            compare([p for p in passes if p is not out], np.arange(64), 8, vacuous=False).excess
            for out in passes
            if out.arm == arm
        ]
        variance += (count - 1) / count * np.sum((np.array(left) - np.mean(left)) ** 2)
    assert compare(passes, np.arange(64), 8, vacuous=False).se_passes == pytest.approx(np.sqrt(variance))


def test_the_shuffled_arm_is_the_floor_where_the_control_keeps_its_order() -> None:
    dice = np.random.default_rng(11)
    shuffled, candidate = dice.integers(0, 3, (4, 400)), dice.integers(0, 3, (4, 400))
    scores = [0.5] * 400
    fixed = [outputs(f"file{i}", "control", [0] * 400, scores) for i in range(4)]
    third = [outputs(f"shuffled{i}", "shuffled", row, [0.0] * 400) for i, row in enumerate(shuffled)]
    tested = [outputs(f"candidate{i}", "candidate", row, scores) for i, row in enumerate(candidate)]
    change = compare([*fixed, *third, *tested], np.arange(400), 8, vacuous=False)
    plain = compare(trial_of(shuffled, candidate), np.arange(400), 8, vacuous=False)
    assert (change.d_aa, change.d_ab, change.d_bb) == (plain.d_aa, plain.d_ab, plain.d_bb)
    assert change.scores is not None
    assert change.scores.difference == 0.0  # against today's order, not against shuffles


def test_a_change_survives_json() -> None:
    change = compare(identical(40), np.arange(40), 8, vacuous=False)
    assert OutputChange.model_validate_json(change.model_dump_json()) == change


# The three answers


def test_outputs_that_never_move_are_as_reshuffling() -> None:
    change = compare(identical(768), np.arange(768), 16, vacuous=False)
    assert (change.d_aa, change.d_ab, change.d_bb, change.excess, change.se) == (0, 0, 0, 0, 0)
    assert change.answer == "as_reshuffling"


def test_fewer_than_299_prompts_cannot_exclude_one_point_even_if_none_moves() -> None:
    answers = [compare(identical(n), np.arange(n), 8, vacuous=False).answer for n in (298, 299)]
    assert answers == ["undecided", "as_reshuffling"]


def test_outputs_that_all_move_are_more_than_reshuffling() -> None:
    same = np.tile(np.arange(64), (5, 1))
    change = compare(trial_of(same, same + 1000), np.arange(64), 8, vacuous=False)
    assert (change.d_aa, change.d_ab, change.d_bb) == (0, 1, 0)
    assert change.answer == "more_than_reshuffling"


def test_agreement_says_nothing_where_sampling_is_random() -> None:
    change = compare(identical(768), np.arange(768), 16, vacuous=True)
    assert (change.vacuous, change.answer) == (True, "undecided")


def test_agreement_says_nothing_where_shuffles_already_disagree_everywhere() -> None:
    everything_differs = np.arange(10 * 400).reshape(10, 400)
    change = compare(trial_of(everything_differs[:5], everything_differs[5:]), np.arange(400), 8, vacuous=False)
    assert (change.d_aa, change.vacuous, change.answer) == (1, True, "undecided")


@pytest.mark.parametrize(("controls", "candidates"), [(1, 5), (2, 5), (5, 1), (5, 0)])
def test_too_few_passes_decide_nothing(controls: int, candidates: int) -> None:
    same = np.tile(np.arange(768), (5, 1))
    change = compare(trial_of(same[:controls], same[:candidates]), np.arange(768), 16, vacuous=False)
    assert (change.answer, change.low, change.high, change.smallest_excess) == ("undecided", None, None, None)
    assert (change.d_aa is None) == (controls < 2)


def test_one_batch_for_all_prompts_decides_nothing() -> None:
    assert compare(identical(768), np.arange(768), 768, vacuous=False).answer == "undecided"


# Scores


def scored_trial(control: NDArray[np.float64], candidate: NDArray[np.float64]) -> list[PassOutputs]:
    arms = (("control", control), ("candidate", candidate))
    return [
        outputs(f"{arm}{i}", arm, [0] * rows.shape[1], row.tolist()) for arm, rows in arms for i, row in enumerate(rows)
    ]


def test_scores_are_paired_by_prompt_and_skip_those_without_reference() -> None:
    dice = np.random.default_rng(12)
    before = np.tile(dice.integers(0, 2, 600).astype(float), (5, 1))
    before[:, 100:150] = np.nan
    after = before.copy()
    after[:, :5] = 1
    scores = compare(scored_trial(before, after), np.arange(600), 8, vacuous=False).scores
    assert scores is not None
    assert scores.prompts == 550
    assert scores.difference == pytest.approx(scores.candidate - scores.control)
    assert scores.difference == pytest.approx((1 - before[0, :5]).sum() / 550)
    assert scores.low is not None
    assert scores.low < scores.difference


def test_a_lost_point_and_more_does_not_pass() -> None:
    before = np.ones((5, 800))
    after = before.copy()
    after[:, ::40] = 0  # 2.5 points lost
    scores = compare(scored_trial(before, after), np.arange(800), 8, vacuous=False).scores
    assert scores is not None
    assert not scores.passed
    unchanged = compare(scored_trial(before, before), np.arange(800), 8, vacuous=False).scores
    assert unchanged is not None
    assert unchanged.passed


def test_scores_that_exist_nowhere_are_absent() -> None:
    assert compare(identical(20), np.arange(20), 4, vacuous=False).scores is None


def test_passes_that_do_not_fit_together_are_an_error() -> None:
    short = [*identical(20), outputs("short", "control", [1, 2])]
    with pytest.raises(OutputsError, match="pass short"):
        compare(short, np.arange(20), 4, vacuous=False)
    with pytest.raises(OutputsError, match="control0 is given twice"):
        agreement_matrix([*identical(20), *identical(20)])
    with pytest.raises(OutputsError, match="its own place"):
        compare(identical(20), np.zeros(20), 4, vacuous=False)
    with pytest.raises(OutputsError, match="no outputs"):
        compare([], [], 4, vacuous=False)


# How often the answers are wrong: a seeded simulation


@dataclass(frozen=True)
class World:
    """How outputs come about. A prompt takes one of six variants by its quantile in a normal variable, of which
    neighbours in a pass's order share a part (they are batched together) and a whole pass shares another.
    """

    neighbours: float = 0.0  # share of the variance that a run of neighbours has in common
    whole_pass: float = 0.0  # share that a pass has in common
    repeats: bool = True  # the candidate's passes all show one draw: its order is fixed and the engine deterministic
    moving: float = 1.0  # share of prompts that have more than one variant
    batch: int = 16
    prompts: int = 768
    passes: int = 10


def trials(world: World, excess: float, count: int, seed: int) -> list[tuple[OutputChange, OutputChange]]:
    """Per trial, the comparison and its mutant that takes prompts for independent (runs of one)."""
    dice = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        variants = dice.dirichlet([2, 2, 1, 1, 1], world.prompts)
        variants[dice.random(world.prompts) >= world.moving] = np.eye(5)[0]
        novel = novelty(variants, excess)
        order = dice.permutation(world.prompts)
        control = np.array([draw(dice, world, variants, dice.permutation(world.prompts)) for _ in range(world.passes)])
        offset = int(dice.integers(world.batch))  # batches need not begin where the runs do
        draws = 1 if world.repeats else world.passes
        candidate = np.array([draw(dice, world, variants, order + offset, novel) for _ in range(draws)])
        passes = trial_of(control, np.repeat(candidate, world.passes // draws, axis=0))
        judged, mutant = (compare(passes, order, runs, vacuous=False) for runs in (world.batch, 1))
        made.append((judged, mutant))
    return made


def draw(
    dice: Generator, world: World, variants: NDArray[np.float64], place: NDArray[np.int64], novel: float = 0.0
) -> NDArray[np.int64]:
    """One pass's outputs; `novel` is the chance of a sixth variant, that no shuffle shows."""
    batches = place // world.batch
    own = 1 - world.neighbours - world.whole_pass
    z = np.sqrt(world.neighbours) * dice.standard_normal(batches.max() + 1)[batches]
    z += np.sqrt(world.whole_pass) * dice.standard_normal() + np.sqrt(own) * dice.standard_normal(len(place))
    quantile = ndtr(z)
    shown = (quantile[:, None] > np.cumsum(variants, axis=1)[:, :-1]).sum(axis=1)
    return np.where(quantile > 1 - novel, 5, shown)


def novelty(variants: NDArray[np.float64], excess: float) -> float:
    """The chance of a novel variant that gives this excess, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(30):
        novel = (low + high) / 2
        shares = np.diff(np.minimum(np.cumsum(variants, axis=1), 1 - novel), axis=1, prepend=0)
        gained = float(((variants - shares) * variants).sum(axis=1).mean())
        low, high = (novel, high) if gained < excess else (low, novel)
    return low


def lower_bound_of_the_mutant(change: OutputChange) -> float:
    """A bootstrap over prompts alone amounts to this: independent prompts, no passes, a normal quantile."""
    assert change.excess is not None
    assert change.se_prompts is not None
    return change.excess - float(ndtri(0.95)) * change.se_prompts


TRIALS = 300
MOST_FALSE = int(binom.ppf(0.999, TRIALS, 0.05))  # a true rate of 5 % gives more once in a thousand times
NEIGHBOURS = World(neighbours=0.5, batch=64)
PASSES = World(neighbours=0.3, whole_pass=0.05, repeats=False)
QUIET = World(neighbours=0.3, moving=0.15)
SINGLE = World(moving=0.13)


@cache
def boundary(world: World) -> list[tuple[OutputChange, OutputChange]]:
    """Trials whose true excess is the tolerance: the hardest case that is not yet more than reshuffling."""
    return trials(world, excess=TOLERANCE, count=TRIALS, seed=1)


@pytest.mark.parametrize("world", [NEIGHBOURS, PASSES, QUIET], ids=["neighbours", "passes", "quiet"])
def test_at_an_excess_of_one_point_false_alarms_stay_under_5_percent(world: World) -> None:
    assert sum(change.answer == "more_than_reshuffling" for change, _ in boundary(world)) <= MOST_FALSE


@pytest.mark.parametrize("world", [NEIGHBOURS, PASSES], ids=["neighbours", "passes"])
def test_the_simulation_catches_an_error_over_independent_prompts(world: World) -> None:
    assert sum(lower_bound_of_the_mutant(mutant) > TOLERANCE for _, mutant in boundary(world)) > 1.5 * MOST_FALSE


@pytest.mark.parametrize("world", [NEIGHBOURS, PASSES], ids=["neighbours", "passes"])
def test_without_an_excess_alarms_are_rare_and_the_lower_bound_holds(world: World) -> None:
    made = [change for change, _ in trials(world, excess=0.0, count=TRIALS, seed=2)]
    assert sum(change.answer == "more_than_reshuffling" for change in made) <= MOST_FALSE / 2
    assert sum(change.low is not None and change.low > 0 for change in made) <= MOST_FALSE


def test_prompts_that_move_one_by_one_keep_the_upper_bound_too() -> None:
    made = [change for change, _ in boundary(World())]
    assert sum(change.answer == "as_reshuffling" for change in made) <= MOST_FALSE


def test_low_churn_is_mostly_cleared_and_high_churn_often_not() -> None:
    cleared = [
        sum(change.answer == "as_reshuffling" for change, _ in trials(world, excess=0.0, count=100, seed=3))
        for world in (SINGLE, World())
    ]
    assert cleared[0] >= 85
    assert 15 <= cleared[1] <= 60


def test_the_smallest_excess_that_could_be_seen_is_seen_four_times_in_five() -> None:
    before = [change.smallest_excess for change, _ in trials(SINGLE, excess=0.0, count=30, seed=4)]
    seen = trials(SINGLE, excess=float(np.mean([x for x in before if x is not None])), count=150, seed=5)
    assert 105 <= sum(change.answer == "more_than_reshuffling" for change, _ in seen) <= 140


# Before the trial


def test_a_pilot_predicts_no_less_than_the_trial_then_needs() -> None:
    dice = np.random.default_rng(6)
    variants = dice.dirichlet([2, 2, 1, 1, 1], SINGLE.prompts)
    variants[dice.random(SINGLE.prompts) >= SINGLE.moving] = np.eye(5)[0]
    pilot = [outputs(f"pilot{i}", "control", draw(dice, SINGLE, variants, np.arange(768)).tolist()) for i in range(4)]
    by_prompt = detectable_excess(shuffle_disagreement(pilot), prompts=768, max_num_seqs=16)
    by_mean = detectable_excess(float(shuffle_disagreement(pilot).mean()), prompts=768, max_num_seqs=16)
    needed = [change.smallest_excess for change, _ in trials(SINGLE, excess=0.0, count=10, seed=6)]
    assert np.mean([x for x in needed if x is not None]) <= by_prompt <= by_mean


def test_more_prompts_and_more_passes_see_less() -> None:
    small, large = (detectable_excess(0.3, prompts, 16) for prompts in (768, 76_800))
    assert TOLERANCE < large < small
    assert detectable_excess(0.3, 768, 16, passes_per_arm=5) > small


def test_nothing_can_be_foreseen_to_be_seen_in_one_batch_or_two_passes() -> None:
    assert detectable_excess(0.1, prompts=16, max_num_seqs=16) == np.inf
    assert detectable_excess(0.1, prompts=768, max_num_seqs=16, passes_per_arm=2) == np.inf


# A third arm


def test_a_fixed_control_lends_the_excess_no_degrees_of_freedom() -> None:
    """Its passes take no part in the excess, so the bounds are those of a trial without it."""
    dice = np.random.default_rng(12)
    usual = dice.integers(0, 5, 200)

    def moved(arm: str) -> list[PassOutputs]:
        return [outputs(f"{arm}{i}", arm, np.where(dice.random(200) < 0.1, 9 + i, usual).tolist()) for i in range(3)]

    shuffled, candidate, fixed = moved("shuffled"), moved("candidate"), moved("control")
    without = compare([*shuffled, *candidate], np.arange(200), 4, vacuous=False)
    beside = compare([*shuffled, *candidate, *fixed], np.arange(200), 4, vacuous=False)
    assert without.low is not None
    assert without.se is not None
    assert beside == without
    assert without.excess is not None
    assert without.excess - without.low == pytest.approx(stdtrit(4, 0.95) * without.se)  # 3 + 3 passes − 2
