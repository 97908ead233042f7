"""Which request waits for which, and which texts are kept."""

from __future__ import annotations

from servebench.load.client.job import WireRequest
from servebench.load.client.order import SessionOrder


def wire(*, session=None, after=(), holes=(), data=b"x", body_at=0):
    return WireRequest("r", session, None, 0.0, None, after, holes, body_at, data)


def test_order_of_a_session():
    """Turns follow one another; a text fills every hole that needs it, and is forgotten after the last."""
    head, body = b"POST\r\n", b'{"t":""}'
    parts = [
        wire(session="s"),
        wire(session="s", holes=[(6, 0)], data=head + body, body_at=6),
        wire(session="s", holes=[(6, 0), (6, 1)], data=head + body, body_at=6),
        wire(),
    ]
    order = SessionOrder(parts)
    assert [set(order.waits(i)) for i in range(4)] == [set(), {0}, {0, 1}, set()]
    assert [order.needs_text(i) for i in range(4)] == [True, True, False, False]
    assert list(order.ended(0, b"AB")) == [(1, True)]
    assert order.fill(1) == b'POST\r\nContent-Length: 10\r\n\r\n{"t":"AB"}'
    assert list(order.ended(1, b"C")) == [(2, True)]
    assert order.fill(2) == b'POST\r\nContent-Length: 11\r\n\r\n{"t":"ABC"}'
    assert list(order.ended(3)) == list(order.ended(2)) == []
    assert not order._texts


def test_order_after_a_failure():
    """Requests that need the missing text can never be sent; those that only follow can."""
    order = SessionOrder([wire(session="s"), wire(session="s", holes=[(0, 0)]), wire(after=[0]), wire(after=[1, 2])])
    assert list(order.ended(0)) == [(1, False), (2, True)]
    assert list(order.ended(1)) == []
    assert list(order.ended(2)) == [(3, True)]
