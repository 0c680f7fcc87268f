"""An order divided among replicas in runs of neighbours, so that clusters stay together and no replica ends late."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from orderproof.engines.protocol import Request, Share
from orderproof.engines.requests import Divisible
from orderproof.routing.predicted_work import equal_shares


class Shares:
    """N places in contiguous shares of equal predicted work, one for each replica.

    A replica that has used up its share takes the back half, by work, of the share with most work left, if both halves
    then have at least `run` places: shorter ones would mix more clusters than they save time.
    """

    def __init__(self, work: NDArray[np.float64], replicas: int, run: int) -> None:
        self.run = run
        self.dealt: list[Share] = []
        self._until = np.concatenate([np.zeros(1), work.cumsum()])  # work before each place
        self._left = equal_shares(work, replicas)

    def take(self, replica: int) -> range:
        """A replica's next places, at most `run` of them; empty: nothing is left for it."""
        left = self._left[replica] or self._back_of_the_longest()
        taken, self._left[replica] = left[: self.run], left[self.run :]
        if taken:
            self._note(replica, taken)
        return taken

    def _back_of_the_longest(self) -> range:
        longest = max(range(len(self._left)), key=lambda k: self._work(self._left[k]))
        left = self._left[longest]
        if len(left) < 2 * self.run:
            return range(0)
        half = (self._until[left.start] + self._until[left.stop]) / 2
        middle = int(np.clip(np.searchsorted(self._until, half), left.start + self.run, left.stop - self.run))
        self._left[longest] = range(left.start, middle)
        return range(middle, left.stop)

    def _work(self, places: range) -> float:
        return float(self._until[places.stop] - self._until[places.start])

    def _note(self, replica: int, taken: range) -> None:
        for k, share in enumerate(self.dealt):
            if (share.replica, share.stop) == (replica, taken.start):
                self.dealt[k] = Share(replica, share.start, taken.stop)
                return
        self.dealt.append(Share(replica, taken.start, taken.stop))


class Dealer:
    """Gives each replica its requests, never more than it has room for: what is sent cannot be rebalanced.

    Each replica has its own thread; one thread at a time reads requests. The length of a stream is not known: its next
    run of neighbours goes to the first replica that has room, which is the least loaded, and each request is passed on
    as soon as it is read.
    """

    def __init__(self, requests: Iterable[Request], replicas: int, *, run: int, room: int) -> None:
        """`run`: neighbours that stay together. `room`: requests of a replica that may be sent and not answered.

        With a stream, a replica has room for one more run, so that its queue stays full while it waits for its turn.
        """
        self.fault: BaseException | None = None  # raised by the source of requests; nothing was dealt after it
        self.run = run
        self._listed = requests if isinstance(requests, Divisible) else None
        self._shares = Shares(self._listed.work(), replicas, run) if self._listed is not None else None
        self._stream = iter(requests if self._listed is None else ())
        self._reading = threading.Lock()
        self._room = threading.Condition()
        self._free = [room + run if self._listed is None else room] * replicas
        self._stopped = False

    @property
    def dealt(self) -> tuple[Share, ...]:
        """What each replica was sent, in the order of dealing; empty for a stream, which may have no end."""
        return tuple(self._shares.dealt) if self._shares else ()

    def requests_of(self, replica: int) -> Iterator[Request]:
        """A replica's requests; waits while it has no room."""
        return self._of_share(replica) if self._shares else self._of_stream(replica)

    def answered(self, replica: int) -> None:
        """A replica has answered a request, and has room for another."""
        with self._room:
            self._free[replica] += 1
            self._room.notify_all()

    def stop(self) -> None:
        """End all waiting; nothing more is dealt."""
        with self._room:
            self._stopped = True
            self._room.notify_all()

    def _of_share(self, replica: int) -> Iterator[Request]:
        while (run := self._next_run(replica)) is not None:
            for request in run:
                if not self._enter(replica):
                    return
                yield request

    def _next_run(self, replica: int) -> list[Request] | None:
        """A replica's next requests (an empty list where none needs an engine); None: nothing is left for it."""
        assert self._listed is not None
        assert self._shares is not None
        with self._reading:
            if self.fault or self._stopped:
                return None
            try:
                places = self._shares.take(replica)
                return list(self._listed.between(places.start, places.stop)) if places else None
            except BaseException as fault:  # run() raises it once everything that was sent is answered
                self.fault = fault
                return None

    def _of_stream(self, replica: int) -> Iterator[Request]:
        while self._wait_for(replica, self.run):
            with self._reading:  # for a whole run, however slowly it arrives
                for _ in range(self.run):
                    request = self._read()
                    if request is None or not self._enter(replica):
                        return
                    yield request

    def _read(self) -> Request | None:
        if self.fault:
            return None
        try:
            return next(self._stream, None)
        except BaseException as fault:  # as above
            self.fault = fault
            return None

    def _enter(self, replica: int) -> bool:
        has_room = self._wait_for(replica, 1)
        with self._room:
            self._free[replica] -= 1
        return has_room

    def _wait_for(self, replica: int, room: int) -> bool:
        """Wait until a replica has room for so many requests; False: stopped."""
        with self._room:
            self._room.wait_for(lambda: self._free[replica] >= room or self._stopped)
            return not self._stopped
