"""Who waits for whom: the requests of a session one after another, those that need an answer after it. No clock, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from servebench.load.client.jobs import WireRequest


class Order:
    """What of a plan may be sent, as its requests end. Requests are told by index; each waits only for earlier ones."""

    def __init__(self, requests: Sequence[WireRequest]) -> None:
        self._requests = requests
        self._waits: dict[int, set[int]] = {}
        self._followers: dict[int, list[int]] = {}
        self._users: dict[int, int] = {}
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
        """What must end before this one."""
        return self._waits.get(index, ())

    def needs_text(self, index: int) -> bool:
        """Whether the answer to this one belongs into another's prompt."""
        return index in self._users

    def followers(self, index: int) -> Sequence[int]:
        """Those that wait for this one."""
        return self._followers.get(index, ())

    def ended(self, index: int, text: bytes | None = None) -> Iterator[tuple[int, bool]]:
        """Told that this one has ended, with the text for the holes of others where it has one.

        Gives each that now waits for nothing more with True, and each that can never be sent, for want of the text, with
        False: whoever asks must then say of that one, too, that it has ended.
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
                self._let_go(follower)
                yield follower, False
                continue
            waits.discard(index)
            if not waits:
                del self._waits[follower]
                yield follower, True

    def filled(self, index: int) -> bytes:
        """The bytes of a request that waits for nothing more and has holes. Texts that nobody else needs are forgotten."""
        data = self._requests[index].filled(self._texts)
        self._let_go(index)
        return data

    def _let_go(self, index: int) -> None:
        for of in {of for _, of in self._requests[index].holes}:
            self._users[of] -= 1
            if not self._users[of]:
                self._texts.pop(of, None)
