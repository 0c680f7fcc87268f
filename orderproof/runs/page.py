"""Pages: one HTML file with its pictures inside, without scripts or links to elsewhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orderproof.runs import page_filters
from orderproof.runs.run import Run


def run_page(run: Run, folder: Path) -> str:
    """The common page of a run: its sentence, figures, what it rests on, and the pictures in its folder."""
    pictures = {path.stem: data_uri(path) for path in sorted(folder.glob("*.png"))}
    return render("run.html.j2", {"run": run, "pictures": pictures})


def render(template: str, facts: Mapping[str, Any]) -> str:
    """A page of one of templates/, in their common style; every value is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    pages = Environment(
        loader=PackageLoader("orderproof.runs", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= page_filters.FILTERS
    return pages.get_template(template).render(facts)


def data_uri(picture: Path) -> str:
    """A picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
