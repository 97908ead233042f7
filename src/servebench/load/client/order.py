"""Which request waits for which: turns of a session, and requests that need an answer. No clock, no I/O."""

from collections.abc import Collection, Iterator, Sequence

from servebench.load.client.job import WireRequest


class SessionOrder:
    """Follows which requests of a plan may be sent as others end. A request is its index and waits only for earlier ones."""

    def __init__(self, requests: Sequence[WireRequest]) -> None:
        self._requests = requests
        self._waits: dict[int, set[int]] = {}
        self._followers: dict[int, list[int]] = {}
        self._users: dict[int, int] = {}
        """How many requests still need the text of this one's answer."""
        self._texts: dict[int, bytes] = {}
        last: dict[str, int] = {}
        for index, request in enumerate(requests):
            waits = {*request.after, *(of for _, of in request.holes)}
            if request.session_id is not None:
                if request.session_id in last:
                    waits.add(last[request.session_id])
                last[request.session_id] = index
            if waits:
                self._waits[index] = waits
            for before in waits:
                self._followers.setdefault(before, []).append(index)
            for of in {of for _, of in request.holes}:
                self._users[of] = self._users.get(of, 0) + 1

    def waits(self, index: int) -> Collection[int]:
        """Return the requests that must end before this one is sent."""
        return self._waits.get(index, ())

    def needs_text(self, index: int) -> bool:
        """Whether the answer to this request is part of another one's prompt."""
        return index in self._users

    def followers(self, index: int) -> Sequence[int]:
        """Return the requests that wait for this one."""
        return self._followers.get(index, ())

    def ended(self, index: int, text: bytes | None = None) -> Iterator[tuple[int, bool]]:
        """Record that this request has ended, with the text for the holes of others if it has one.

        Yields each request that now waits for nothing more with True, and each that can never be sent because the text
        is missing with False. For the latter the caller must call `ended` too.
        """
        wanted = index in self._users
        if text is not None and wanted:
            self._texts[index] = text
        for follower in self._followers.pop(index, ()):
            waits = self._waits.get(follower)
            if waits is None:
                continue
            if wanted and text is None and any(of == index for _, of in self._requests[follower].holes):
                del self._waits[follower]
                self._release_texts(follower)
                yield follower, False
                continue
            waits.discard(index)
            if not waits:
                del self._waits[follower]
                yield follower, True

    def fill(self, index: int) -> bytes:
        """Return the bytes of a request that has holes and waits for nothing more. Forgets texts that nobody else needs."""
        data = self._requests[index].fill(self._texts)
        self._release_texts(index)
        return data

    def _release_texts(self, index: int) -> None:
        for of in {of for _, of in self._requests[index].holes}:
            self._users[of] -= 1
            if not self._users[of]:
                self._texts.pop(of, None)
