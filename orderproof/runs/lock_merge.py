"""Three versions of dvc.lock → one: what two workers recorded of different stages, put together.

In: the paths of the common ancestor, of ours and of theirs, as git hands them to a merge driver. Out: ours holds both,
and exit status 0; or 1, and ours is as it was, where both recorded the same stage and not the same of it. Lines that
two workers append at one place are a conflict to git, though one stage has nothing to do with the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orderproof.job.files import atomic_file


class BothRecorded(Exception):
    """A stage of which the two versions tell different things, both new."""


def merge_stages(
    base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Of each stage what the side says that changed it; a stage that one side dropped stays dropped.

    Raises:
        BothRecorded: both sides changed one, and not alike.
    """
    for stage in dict.fromkeys([*ours, *theirs]):
        before, here, there = (side.get(stage) for side in (base, ours, theirs))
        if here != before and there not in (before, here):
            raise BothRecorded(stage)
        entry = there if here == before else here
        if entry is not None:
            yield stage, entry


def main(base: Path, ours: Path, theirs: Path) -> int:
    """Merge into `ours`. Returns the exit status."""
    yaml = YAML()
    locks = [yaml.load(path.read_bytes()) or {} for path in (base, ours, theirs)]
    try:
        stages = dict(merge_stages(*(lock.get("stages") or {} for lock in locks)))
    except BothRecorded:
        return 1
    with atomic_file(ours) as sink:
        yaml.dump({"schema": "2.0", **locks[1], "stages": stages}, sink)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*map(Path, sys.argv[1:4])))
