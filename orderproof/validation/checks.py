"""Checks on a table of derived columns, run by Great Expectations and kept as JSON and as a Data Docs page.

In: a pandas frame, one row per prompt or output, and checks. Out: a `Finding` per check, `<stem>.json` and
`<stem>/index.html`. Knows nothing of what the rows mean; only counts, lengths and ids belong in a frame, never a text.

Great Expectations takes seconds to import: it is imported where it is used, and nowhere else.
"""

from __future__ import annotations

import copy
import datetime
import html
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orderproof.job.files import write_atomically

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = "orderproof/validation/1"
SHOWN_ROWS = 5  # failing rows that a message names; the rest is counted
TEMPLATE = "validation.html.j2"


def _nothing(columns: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True)
class Check:
    """One expectation, and how its failures are told."""

    expectation: str  # class of great_expectations.expectations
    arguments: Mapping[str, Any]
    says: str  # what holds if it passes
    wrong: str  # what is wrong if it fails
    remedy: str
    detail: Callable[[Mapping[str, Any]], str] = _nothing  # to tell of a failing row


def holds(
    column: str, says: str, wrong: str, remedy: str, detail: Callable[[Mapping[str, Any]], str] | None = None
) -> Check:
    """A check that a column of truths is true wherever it is known."""
    arguments = {"column": column, "value_set": [True]}
    return Check("ExpectColumnValuesToBeInSet", arguments, says, wrong, remedy, detail or _nothing)


@dataclass(frozen=True)
class Finding:
    """What came of a check: how many rows failed, and the first SHOWN_ROWS of them, by the frame's index."""

    check: Check
    success: bool
    count: int
    rows: tuple[tuple[int, Mapping[str, Any]], ...]

    def sentence(self, total: int, row_word: str) -> str:
        """What is wrong, where, and what to do."""
        if not self.rows:  # it is the table as a whole that failed
            return f"{self.check.wrong}. {self.check.remedy}"
        told = [_told(row_word, number, columns, self.check.detail(columns)) for number, columns in self.rows]
        if self.count > len(told):
            told.append(f"and {self.count - len(told)} more")
        return f"{self.check.wrong} ({self.count} of {total}): {'; '.join(told)}. {self.check.remedy}"


@dataclass(frozen=True)
class Report:
    """The findings of one suite, and Great Expectations' own result."""

    suite: str
    findings: tuple[Finding, ...]
    rows: int
    result: Any  # ExpectationSuiteValidationResult

    @property
    def failures(self) -> list[Finding]:
        return [finding for finding in self.findings if not finding.success]


def run(suite: str, frame: pd.DataFrame, checks: Sequence[Check]) -> Report:
    """Run a suite of checks over a frame, in memory.

    Args:
        frame: its index holds distinct row numbers, by which failing rows are named; nulls fail no check.
    """
    result = _validate(suite, frame, checks)
    by_number = {r.expectation_config.meta["check"]: r for r in result.results}
    findings = tuple(_finding(check, by_number[i], frame) for i, check in enumerate(checks))
    return Report(suite, findings, len(frame), result)


def write(folder: Path, stem: str, about: Mapping[str, Any], message: str, report: Report | None) -> dict[str, Any]:
    """Keep what was found as <stem>.json, and as <stem>/index.html if a suite ran. Returns what the JSON holds.

    Args:
        about: what was validated; shown at the top of the page.
        message: what is wrong; empty if nothing is.
        report: None if the data could not be read.
    """
    kept = {
        "schema_version": SCHEMA,
        **about,
        "valid": not message,
        "message": message,
        "created_utc": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "checks": [_as_json(finding) for finding in report.findings] if report else [],
        "great_expectations": report.result.to_json_dict() if report else None,
    }
    page = folder / stem / "index.html"
    if report:
        write_atomically(page, _page(about, message, report))
    else:
        page.unlink(missing_ok=True)  # a page of an earlier file would contradict what is said now
    write_atomically(folder / f"{stem}.json", json.dumps(kept, ensure_ascii=False, indent=1) + "\n")
    return kept


def _validate(suite: str, frame: pd.DataFrame, checks: Sequence[Check]) -> Any:
    import great_expectations as gx
    import great_expectations.expectations as gxe
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    context = gx.get_context(
        mode="ephemeral",
        project_config=DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            progress_bars=ProgressBarsConfig(globally=False),
            analytics_enabled=False,
        ),
    )
    expectations = [
        getattr(gxe, check.expectation)(**check.arguments, description=check.says, meta={"check": i})
        for i, check in enumerate(checks)
    ]
    rows = context.data_sources.add_pandas(suite).add_dataframe_asset(suite).add_batch_definition_whole_dataframe("all")
    definition = gx.ValidationDefinition(
        name=suite, data=rows, suite=context.suites.add(gx.ExpectationSuite(name=suite, expectations=expectations))
    )
    # SUMMARY without named columns: naming the failing rows of a million takes Great Expectations minutes
    wanted = {
        "result_format": "SUMMARY",
        "partial_unexpected_count": SHOWN_ROWS,
        "return_unexpected_index_query": False,
    }
    return context.validation_definitions.add(definition).run(
        batch_parameters={"dataframe": frame}, result_format=wanted
    )


def _finding(check: Check, result: Any, frame: pd.DataFrame) -> Finding:
    if "observed_value" not in result.result and "unexpected_count" not in result.result:
        raise RuntimeError(f"{check.expectation} could not be evaluated: {result.exception_info}")
    numbers = [int(number) for number in result.result.get("partial_unexpected_index_list") or ()]
    rows = tuple((n, _plain(frame.loc[n].to_dict())) for n in numbers)
    return Finding(check, bool(result.success), int(result.result.get("unexpected_count") or 0), rows)


def _plain(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON knows; null for pandas' and numpy's several missing ones."""
    import pandas as pd

    return {k: None if pd.isna(v) else v.item() if hasattr(v, "item") else v for k, v in columns.items()}


def _told(row_word: str, number: int, columns: Mapping[str, Any], detail: str) -> str:
    name = f" (id {columns['id']!r})" if columns.get("id") is not None else ""
    return f"{row_word} {number}{name}{', ' + detail if detail else ''}"


def _as_json(finding: Finding) -> dict[str, Any]:
    return {
        "says": finding.check.says,
        "success": finding.success,
        "failed_rows": finding.count,
        "first_failed_rows": [
            {"row": number, **{name: value for name, value in columns.items() if value is not None}}
            for number, columns in finding.rows
        ],
    }


def _page(about: Mapping[str, Any], message: str, report: Report) -> str:
    """Great Expectations' own rendering of the result in a page of ours, which fetches nothing from elsewhere."""
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    result = copy.deepcopy(report.result)
    for each in result.results:
        each.result = _escaped(each.result)  # tables of unexpected values go into the page as they are
    document = ValidationResultsPageRenderer(run_info_at_end=True).render(result)
    document.sections = document.sections[1:]  # its overview links to pages of a site
    view: Any = DefaultJinjaPageView(custom_views_directory=str(Path(__file__).parent))
    page: str = view.render(document, template=TEMPLATE, about=about, message=message, result=report.result)
    return page


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return html.escape(value) if isinstance(value, str) else value
