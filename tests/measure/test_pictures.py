"""What the pictures of a trial show, down to the dots."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.image import imread

from orderproof.measure.breakdown import pair_gains
from orderproof.measure.evaluate import judge, slice_table
from orderproof.measure.pictures import draw, pictures
from orderproof.measure.throughput_picture import slice_minutes
from orderproof.outputs.passes import CANDIDATE, CONTROL, SHUFFLED
from orderproof.runs.style import COLOURS, DPI, MARKS, WIDTH_IN
from tests.support.trial_maker import make_trial

HOLLOW = "white"


def marks(axes: Axes) -> list[tuple[str, str, float, float]]:
    """(arm, face colour, minutes, rate) of every slice's mark."""
    arms = {colour: arm for arm, colour in COLOURS.items()}
    return [
        (arms[line.get_markeredgecolor()], line.get_markerfacecolor(), float(x), float(y))
        for line in axes.lines
        if line.get_markeredgecolor() in arms and line.get_marker() in MARKS.values()
        for x, y in [(line.get_xdata()[0], line.get_ydata()[0])]
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


def test_every_pair_is_a_dot_in_its_clusters_row(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5)
    verdict = judge(trial)
    assert verdict is not None
    (axes,) = pictures(trial, verdict)["gain"].axes
    dots = [line for line in axes.lines if line.get_marker() in ("o", "<", ">") and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in dots) == 30
    table = slice_table(trial)
    shown = np.sort(np.concatenate([line.get_xdata() for line in dots if line.get_marker() == "o"]))
    assert np.isin(shown.round(6), (100 * pair_gains(table)).round(6).ravel()).all()
    rows = [label.get_text() for label in axes.get_yticklabels()]
    assert rows == [*trial.manifest.slices.labels, "all pairs"]
    interval = next(line for line in axes.lines if line.get_linewidth() == 4)
    np.testing.assert_allclose(interval.get_xdata(), [100 * verdict.gain_low, 100 * verdict.gain_high])
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert legend[:3] == ["no gain", "margin 1 %", "minimum effect 3 %"]
    assert legend[3].startswith("detectable ")


def test_slices_stand_at_their_time_and_rate(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5, third_arm=True)
    (axes,) = pictures(trial, None)["throughput"].axes
    shown = sorted(marks(axes), key=lambda mark: mark[2])
    assert [(arm, rate) for arm, _, _, rate in shown] == [
        (part.arm, pytest.approx(part.tokens_per_s)) for part in trial.slices
    ]
    assert {arm for arm, *_ in shown} == {CONTROL, CANDIDATE, SHUFFLED}
    hours = sum(part.seconds for part in trial.slices) / 3600
    assert hours < shown[-1][2] / 60 < 1.3 * hours


def test_slices_that_were_run_again_are_hollow(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=5, repeated_block=3)
    (axes,) = pictures(trial, None)["throughput"].axes
    hollow = [(arm, rate) for arm, face, _, rate in marks(axes) if face == HOLLOW]
    assert sorted(hollow) == sorted((part.arm, pytest.approx(part.tokens_per_s)) for part in trial.repeated())
    assert len(hollow) == 2


def test_a_trial_taken_up_later_goes_on_at_its_own_time(tmp_path: Path) -> None:
    trial = make_trial(tmp_path / "job" / "trial", blocks=2)
    later = [
        part.model_copy(update={"start_s": part.start_s - 990, "started_utc": "2026-11-29T15:46:40Z"})
        for part in trial.slices
        if part.block == 2
    ]
    minutes = slice_minutes([*(part for part in trial.slices if part.block == 1), *later])
    assert minutes == sorted(minutes)
    assert minutes[12] == pytest.approx(60, abs=1)


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
    named = [text.get_text() for text in drawn["throughput"].axes[0].texts if text.get_text().startswith("block")]
    assert named == [f"block {number}" for number in range(1, 41, 4)]
