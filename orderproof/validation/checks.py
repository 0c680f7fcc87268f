"""Checks on a table of derived columns, run by Great Expectations and kept as JSON and as a readable page.

A frame has one row per prompt or output and only counts, lengths and ids, never a text. Great Expectations takes
seconds to import, so functions import it.
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
SHOWN_ROWS = 5  # failing rows that a message names; the others are counted
TEMPLATE = "validation.html.j2"


def _no_detail(columns: Mapping[str, Any]) -> str:
    return ""


@dataclass(frozen=True)
class Check:
    """One expectation, and the words for its failures."""

    expectation: str  # class of great_expectations.expectations
    arguments: Mapping[str, Any]
    description: str  # what is true if it passes
    problem: str  # what is wrong if it fails
    remedy: str
    detail: Callable[[Mapping[str, Any]], str] = _no_detail  # about a failing row, from its columns
    tolerable: bool = False  # whether the other rows can be used without those that fail


def is_true(
    column: str,
    description: str,
    problem: str,
    remedy: str,
    detail: Callable[[Mapping[str, Any]], str] = _no_detail,
    *,
    tolerable: bool = False,
) -> Check:
    """A check that a boolean column is true wherever it is not null."""
    arguments = {"column": column, "value_set": [True]}
    return Check("ExpectColumnValuesToBeInSet", arguments, description, problem, remedy, detail, tolerable)


@dataclass(frozen=True)
class Finding:
    """The result of a check: how many rows failed, and the first SHOWN_ROWS of them by the frame's index."""

    check: Check
    success: bool
    count: int
    rows: tuple[tuple[int, Mapping[str, Any]], ...]

    def message(self, total: int, row_word: str) -> str:
        """What is wrong, where, and what to do."""
        if not self.rows:  # the table as a whole failed
            return f"{self.check.problem}. {self.check.remedy}"
        rows = [_describe(row_word, number, columns, self.check.detail(columns)) for number, columns in self.rows]
        if self.count > len(rows):
            rows.append(f"and {self.count - len(rows)} more")
        return f"{self.check.problem} ({self.count} of {total}): {'; '.join(rows)}. {self.check.remedy}"


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


def run_suite(suite: str, frame: pd.DataFrame, checks: Sequence[Check]) -> Report:
    """Run a suite of checks over a frame, in memory.

    Args:
        frame: its index holds distinct row numbers, by which failing rows are named; nulls fail no check.
    """
    result = _validate(suite, frame, checks)
    by_number = {r.expectation_config.meta["check"]: r for r in result.results}
    findings = tuple(_finding(check, by_number[i], frame) for i, check in enumerate(checks))
    return Report(suite, findings, len(frame), result)


def write_findings(
    folder: Path, stem: str, about: Mapping[str, Any], message: str, report: Report | None
) -> dict[str, Any]:
    """Write what was found to <stem>.json, and to <stem>/index.html if a suite ran. Returns the JSON's content.

    Args:
        about: what was validated, shown at the top of the page.
        message: what is wrong; empty if all is valid.
        report: None if the data could not be read.
    """
    content = {
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
        page.unlink(missing_ok=True)  # a page about an earlier file would contradict this finding
    write_atomically(folder / f"{stem}.json", json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    return content


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
        getattr(gxe, check.expectation)(**check.arguments, description=check.description, meta={"check": i})
        for i, check in enumerate(checks)
    ]
    rows = context.data_sources.add_pandas(suite).add_dataframe_asset(suite).add_batch_definition_whole_dataframe("all")
    definition = gx.ValidationDefinition(
        name=suite, data=rows, suite=context.suites.add(gx.ExpectationSuite(name=suite, expectations=expectations))
    )
    # SUMMARY without named columns: Great Expectations takes minutes to name the failing rows of a million
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
    """Values that JSON has; null for the missing values of pandas and numpy."""
    import pandas as pd

    return {k: None if pd.isna(v) else v.item() if hasattr(v, "item") else v for k, v in columns.items()}


def _describe(row_word: str, number: int, columns: Mapping[str, Any], detail: str) -> str:
    name = f" (id {columns['id']!r})" if columns.get("id") is not None else ""
    return f"{row_word} {number}{name}{', ' + detail if detail else ''}"


def _as_json(finding: Finding) -> dict[str, Any]:
    return {
        "description": finding.check.description,
        "success": finding.success,
        "failed_rows": finding.count,
        "first_failed_rows": [
            {"row": number, **{name: value for name, value in columns.items() if value is not None}}
            for number, columns in finding.rows
        ],
    }


def _page(about: Mapping[str, Any], message: str, report: Report) -> str:
    """Great Expectations' own sections in a page of ours, which loads nothing from other hosts."""
    from great_expectations.render.renderer.page_renderer import ValidationResultsPageRenderer
    from great_expectations.render.view.view import DefaultJinjaPageView

    result = copy.deepcopy(report.result)
    for outcome in result.results:
        outcome.result = _escaped(outcome.result)  # tables of unexpected values are inserted unescaped
    document = ValidationResultsPageRenderer(run_info_at_end=True).render(result)
    document.sections = document.sections[1:]  # the overview links to pages that do not exist
    view: Any = DefaultJinjaPageView(custom_views_directory=str(Path(__file__).parent))
    page: str = view.render(document, template=TEMPLATE, about=about, message=message, result=report.result)
    return page


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return html.escape(value) if isinstance(value, str) else value
