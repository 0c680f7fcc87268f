"""Artifacts have keys that Prefect takes, and one that it does not take stops no work."""

from __future__ import annotations

import logging
import re

import httpx
import pytest

from flows.reporting import artifact_key, best_effort


@pytest.mark.parametrize("job", ["six-domains", "my_job", "a"])
def test_every_job_has_keys_that_prefect_takes_and_a_placebo_has_its_own(job: str) -> None:
    keys = {artifact_key("verdict", job), artifact_key("verdict", job, placebo=True)}
    assert len(keys) == 2
    assert all(re.fullmatch("[a-z0-9-]+", key) for key in keys)


def test_an_artifact_that_prefect_does_not_take_is_told_and_the_work_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), best_effort("the block's table"):
        raise httpx.ConnectError("all connection attempts failed")
    assert "Prefect did not take the block's table: ConnectError: all connection attempts failed" in caplog.text


def test_an_interruption_is_no_failed_artifact() -> None:
    with pytest.raises(KeyboardInterrupt), best_effort("the block's table"):
        raise KeyboardInterrupt
