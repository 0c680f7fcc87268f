"""What the pictures of a trial show, down to the dots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from orderproof.measure.evaluate import judge
from orderproof.measure.figures import draw, pictures
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from orderproof.runs.style import COLOURS, DPI, MARKS, WIDTH_IN
from tests.support.trial_maker import make_trial

HOLLOW = "white"


def marks(axes: Axes) -> list[tuple[str, str, float]]:
    """(arm, face colour, height) of every pass's mark."""
    arms = {colour: arm for arm, colour in COLOURS.items()}
    return [
        (arms[line.get_markeredgecolor()], line.get_markerfacecolor(), float(line.get_ydata()[0]))
        for line in axes.lines
        if line.get_markeredgecolor() in arms and line.get_marker() in MARKS.values()
    ]


def test_a_whole_trial_gives_four_pictures_of_the_pages_width(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5)
    drawn = draw(trial, judge(trial), tmp_path)
    assert [path.name for path in drawn] == ["gain.png", "throughput.png", "agreement.png", "step_time.png"]
    for path in drawn:
        pixels = imread(path)
        assert pixels.shape[1] == WIDTH_IN * DPI
        assert pixels[..., :3].std() > 0.01  # not a blank sheet


@pytest.mark.parametrize(
    ("blocks", "names"), [(0, []), (1, ["throughput", "step_time"]), (2, ["throughput", "agreement", "step_time"])]
)
def test_an_unfinished_trial_gives_what_it_has(tmp_path: Path, blocks: int, names: list[str]) -> None:
    assert list(pictures(make_trial(tmp_path / "job" / "trial", blocks=blocks), None)) == names


def test_every_block_is_a_dot_at_its_own_gain(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5)
    verdict = judge(trial)
    assert verdict is not None
    (axes,) = pictures(trial, verdict)["gain"].axes
    dots, interval = axes.lines[0], axes.lines[1]
    np.testing.assert_allclose(dots.get_xdata(), 100 * np.expm1(verdict.log_ratios))
    np.testing.assert_allclose(interval.get_xdata(), [100 * verdict.gain_low, 100 * verdict.gain_high])
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend[:3] == ["no gain", "margin 1 %", "minimum effect 3 %"]
    assert legend[3].startswith("detectable ")


def test_passes_stand_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5, third_arm=True)
    (axes,) = pictures(trial, None)["throughput"].axes
    shown = [(arm, rate) for arm, _, rate in marks(axes)]
    assert shown == [(p.arm, pytest.approx(p.throughput_req_s)) for p in trial.passes if p.block]
    assert {arm for arm, _ in shown} == {CONTROL, CANDIDATE, SHUFFLED}


def test_discards_are_hollow_and_an_outlier_among_them_is_set_at_the_edge_with_its_rate(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5, repeated_block=3)
    (axes,) = pictures(trial, None)["throughput"].axes
    hollow = [(arm, height) for arm, face, height in marks(axes) if face == HOLLOW]
    assert len(hollow) == len(trial.discarded()) == 2
    spoiled = next(p for p in trial.passes if p.invalid)
    height = dict(hollow)[spoiled.arm]
    assert spoiled.throughput_req_s < axes.get_ylim()[0] < height
    assert f"↓ {spoiled.throughput_req_s:.4g}" in [text.get_text() for text in axes.texts]
    assert "3\nlost" in [label.get_text() for label in axes.get_xticklabels()]


def test_the_agreement_matrix_is_ordered_by_arm_and_leaves_a_pass_with_itself_out(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=3, shuffle_disagreement=0.0, candidate_churn=1.0)
    axes = pictures(trial, None)["agreement"].axes[0]
    shown = np.asarray(axes.images[0].get_array().filled(np.nan))
    assert np.isnan(np.diag(shown)).all()
    assert (shown[:3, :3][~np.eye(3, dtype=bool)] == 100).all()  # control passes agree on everything
    assert (shown[:3, 3:] < 20).all()  # the candidate's on nearly nothing
    assert [label.get_text() for label in axes.get_xticklabels()] == [CONTROL, CANDIDATE]


def test_identical_is_said_only_where_every_output_was(tmp_path: Path) -> None:
    def title(name: str, shuffle_disagreement: float) -> str:
        trial = make_trial(tmp_path / "job" / name, blocks=3, shuffle_disagreement=shuffle_disagreement)
        return str(pictures(trial, None)["agreement"].axes[0].get_title(loc="left"))

    assert title("same", 0.0) == "Outputs were identical in every pass"
    assert "identical" not in title("moved", 0.02)


def test_arms_differ_in_mark_as_well_as_in_colour() -> None:
    assert len(set(COLOURS.values())) == len(set(MARKS.values())) == len(COLOURS) == 3


def test_forty_blocks_stay_on_a_page(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=40, looks=(10, 20, 40), noise=0.06, prompts=12)
    drawn = pictures(trial, judge(trial))
    assert all(figure.get_figheight() <= 6 for figure in drawn.values())
    labels = [label.get_text() for label in drawn["throughput"].axes[0].get_xticklabels()]
    assert labels == [str(block) for block in range(5, 41, 5)]
