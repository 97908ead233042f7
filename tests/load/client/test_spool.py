"""Spools are read back, also when the writer was killed in the middle."""

import pytest

from servebench.load.client.connection import TIMESPEC
from servebench.load.client.spool import END, HEAD, end_frame, meta_frame, read_spool, reads_frame, sent_frame
from servebench.util.errors import StoreError

WHO = [("a", None), ("b", "s1"), ("c", None)]


def data_frame(index, *reads, user=False):
    stamps = [TIMESPEC.pack(seconds, nanoseconds) for seconds, nanoseconds, _ in reads]
    return reads_frame(index, stamps, [data for _, _, data in reads], user=user)


FRAMES = [
    meta_frame(WHO),
    sent_frame(0, 1, 2, 3, 4),
    sent_frame(1, 5, 0, 0, 6),
    data_frame(0, (7, 1, b"one"), (7, 3, b""), (7, 4, b"more")),
    data_frame(1, (7, 2, b"two")),
    data_frame(0, (8, 0, b"three")),
    end_frame(1, 9, "reset", "connection reset by peer"),
    end_frame(0, 10, "complete"),
]


def read(tmp_path, data):
    path = tmp_path / "x.spool"
    path.write_bytes(data)
    return list(read_spool(path))


def test_exchanges_come_in_the_order_in_which_they_ended(tmp_path):
    """Interleaved streams are separated; a stamp of 0 means that it did not happen."""
    first, second = read(tmp_path, b"".join(FRAMES))
    assert (first.request_id, first.session_id, first.outcome, first.error) == (
        "b",
        "s1",
        "reset",
        "connection reset by peer",
    )
    assert (first.connect_started_ns, first.connected_ns, first.sent_ns, first.ended_ns) == (None, None, 6, 9)
    assert list(second.reads) == [
        (7_000_000_001, b"one"),
        (7_000_000_003, b""),
        (7_000_000_004, b"more"),
        (8_000_000_000, b"three"),
    ]
    assert (second.reads[1:3], second.reads[-1]) == (list(second.reads)[1:3], (8_000_000_000, b"three"))
    assert (second.connect_started_ns, second.connected_ns, second.error) == (2, 3, None)
    assert second.stamp_source == "kernel"


def test_a_user_space_stamp_is_recorded(tmp_path):
    """One read without a kernel stamp gives the whole exchange the source `user`."""
    frames = [
        meta_frame(WHO),
        sent_frame(0, 1, 0, 0, 1),
        data_frame(0, (1, 0, b"x"), user=True),
        end_frame(0, 2, "complete"),
    ]
    assert read(tmp_path, b"".join(frames))[0].stamp_source == "user"


def test_a_second_send_replaces_the_first(tmp_path):
    """A request that was sent again has only the stamps and reads of the second connection."""
    frames = [
        meta_frame(WHO),
        sent_frame(0, 1, 0, 0, 1),
        data_frame(0, (1, 0, b"x")),
        sent_frame(0, 1, 2, 3, 4),
        end_frame(0, 5, "complete"),
    ]
    (exchange,) = read(tmp_path, b"".join(frames))
    assert (exchange.sent_ns, list(exchange.reads)) == (4, [])


def test_every_cut_keeps_what_was_finished(tmp_path):
    """After a kill at any byte complete frames count: finished requests stay finished, the others are cancelled."""
    whole = b"".join(FRAMES)
    starts = len(FRAMES[0])
    for size in range(starts, len(whole) + 1):
        exchanges = read(tmp_path, whole[:size])
        finished = [exchange.request_id for exchange in exchanges if exchange.outcome != "cancelled"]
        written = [end for end in (len(b"".join(FRAMES[:7])), len(whole)) if end <= size]
        assert finished == ["b", "a"][: len(written)]
        assert len(exchanges) <= 2


def test_an_empty_spool_has_no_exchange(tmp_path):
    """The worker was killed before the first frame."""
    assert read(tmp_path, b"") == []


@pytest.mark.parametrize("data", [b"PAR1 is something else", HEAD.pack(END, 0, 0)])
def test_another_file_is_refused(tmp_path, data):
    """A file that does not begin with the ids of its requests is not a spool."""
    with pytest.raises(StoreError, match="spool is not a spool"):
        read(tmp_path, data)


def test_names_that_were_cut_off_have_no_exchange(tmp_path):
    """Killed, or out of disk space, during the first frame: nothing had been sent."""
    for size in range(len(FRAMES[0])):
        assert read(tmp_path, FRAMES[0][:size]) == []


def test_a_corrupt_frame_keeps_the_frames_before_it(tmp_path):
    """With any byte after the ids changed, the spool is read to its end or to the first invalid frame."""
    whole, starts = b"".join(FRAMES), len(FRAMES[0])
    for place in range(starts, len(whole)):
        spoiled = whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :]
        exchanges = read(tmp_path, spoiled)
        assert len(exchanges) <= 3
        if place >= len(b"".join(FRAMES[:7])):
            assert (exchanges[0].request_id, exchanges[0].outcome) == ("b", "reset")


def test_corrupt_ids_are_refused(tmp_path):
    with pytest.raises(StoreError, match="spool is not a spool"):
        read(tmp_path, FRAMES[0].replace(b'"requests"', b'"reqXests"') + b"".join(FRAMES[1:]))
