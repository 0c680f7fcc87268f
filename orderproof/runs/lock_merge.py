"""A git merge driver for dvc.lock: combines what two workers recorded of different stages.

git calls it with the paths of the common ancestor, ours and theirs, and reads the result from ours. Exit status 0:
merged; 1: both recorded the same stage differently, and ours is unchanged. git's own merge would report a conflict for
any two stages that are appended at the same place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orderproof.job.files import atomic_file


class StageConflict(Exception):
    """Both sides changed the same stage, in different ways."""


def merge_stages(
    base: Mapping[str, Any], ours: Mapping[str, Any], theirs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield each stage as the side that changed it has it. A stage that one side removed stays removed.

    Raises:
        StageConflict: both sides changed a stage, in different ways.
    """
    for stage in dict.fromkeys([*ours, *theirs]):
        before, own, other = (side.get(stage) for side in (base, ours, theirs))
        if own != before and other not in (before, own):
            raise StageConflict(stage)
        entry = other if own == before else own
        if entry is not None:
            yield stage, entry


def main(base: Path, ours: Path, theirs: Path) -> int:
    """Merge into `ours`. Returns the exit status."""
    yaml = YAML()
    locks = [yaml.load(path.read_bytes()) or {} for path in (base, ours, theirs)]
    try:
        stages = dict(merge_stages(*(lock.get("stages") or {} for lock in locks)))
    except StageConflict:
        return 1
    with atomic_file(ours) as sink:
        yaml.dump({"schema": "2.0", **locks[1], "stages": stages}, sink)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*map(Path, sys.argv[1:4])))
