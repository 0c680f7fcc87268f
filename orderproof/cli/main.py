"""The command `orderproof`: arguments in, results on standard output, everything else on standard error.

Exit codes: 0 finished, 1 failed, 2 wrong usage; with --exit-code the verdict's own (promote 0, keep 10, inconclusive
11, refused 12, invalid 13) or the reproduction's (reproduced 0, outputs differ 20, scores moved 21).

Heavy imports are inside the commands: help and wrong usage answer at once.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
from types import FrameType

import typer

from orderproof.cli import generate, init, measure, order, plan, status
from orderproof.job.errors import OrderproofError
from orderproof.job.spec import JobError

INTERRUPTED = 130  # exit code: 128 + SIGINT
KEPT = "interrupted; what was finished is kept: blocks in the trial's folder, results in the checkpoint"

interrupts: list[int] = []  # signals that arrived

app = typer.Typer(
    name="orderproof",
    help="Decide with evidence in which order to send an offline batch to a mixture-of-experts model.",
    epilog="Start with: orderproof doctor; orderproof validate JOB; orderproof measure JOB",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for subject in (measure, generate, plan, order, status, init):
    app.add_typer(subject.commands)


def main() -> None:
    """Run the command. A mistake of the user is one message, never a traceback."""
    try:
        _run()
    except SystemExit as ended:
        _flush_standard_output(reported=bool(ended.code))
        raise
    _flush_standard_output(reported=False)


def _run() -> None:
    logging.captureWarnings(True)
    _spare_the_garbage_collector()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's `&` ignores it
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
    except JobError as error:
        _fail(str(error), 2)
    except OrderproofError as error:
        _fail("\n".join((str(error), *error.words)), 1)
    except KeyboardInterrupt:
        _fail(KEPT, INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away: there is nobody to answer
        raise SystemExit(1) from None
    except SystemExit as ended:
        if ended.code == INTERRUPTED:  # typer prints nothing
            _fail(KEPT, INTERRUPTED)
        raise
    except Exception as error:
        if interrupts:  # a library that was just imported turned it into another error
            _fail(KEPT, INTERRUPTED)
        if isinstance(error, OSError) and error.filename is not None:
            cause = f"{error.filename}: {error.strerror}. Fix the folder or its permissions"
            _fail(f"{cause}, and run the same command again; what was finished is kept", 1)
        _flush_standard_output(reported=False)  # the page of a --help is written outside of `say`
        raise


def _flush_standard_output(*, reported: bool) -> None:
    """Flush what is buffered while a failure can still be reported: the interpreter's own last flush exits with 120.

    What cannot be written is dropped, so that this last flush succeeds.

    Args:
        reported: the command has failed already and has reported why.
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if not reported:
            _fail(f"the answer cannot be written to the standard output: {error.strerror}", 1)


def _interrupt(number: int, frame: FrameType | None) -> None:
    interrupts.append(number)
    signal.default_int_handler(number, frame)


def _spare_the_garbage_collector() -> None:
    """Large imports trigger it hundreds of times, and so does the process's end: seconds for nothing."""
    gc.set_threshold(50_000)  # new objects: far more than Python's own
    atexit.register(gc.freeze)  # what is there then goes with the process


def _fail(message: str, code: int) -> None:
    print(f"orderproof: {message}", file=sys.stderr)
    raise SystemExit(code)
