"""Images in prompts: valid files, the same for the same seed, in the shape of each API."""

import base64
import struct
import zlib

import pytest

from servebench.contracts.engine import Dialect
from servebench.contracts.request import Message, Request
from servebench.contracts.settings import ImageSettings, WorkloadSettings
from servebench.protocol.kinds.table import KINDS
from servebench.workload.build.requests import add_extras, images_of, png


def pixels(file):
    """The bytes of the rows of a PNG file whose chunks are whole and have the right checksums."""
    assert file[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = {}, 8
    while at < len(file):
        (size,) = struct.unpack(">I", file[at : at + 4])
        name, data = file[at + 4 : at + 8], file[at + 8 : at + 8 + size]
        assert struct.unpack(">I", file[at + 8 + size : at + 12 + size]) == (zlib.crc32(name + data),)
        chunks[name], at = data, at + 12 + size
    assert list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    return struct.unpack(">IIBBBBB", chunks[b"IHDR"]), zlib.decompress(chunks[b"IDAT"])


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 3), (64, 48)])
def test_a_file_is_a_png(width, height):
    head, rows = pixels(png(width, height, "a"))
    assert head == (width, height, 8, 2, 0, 0, 0)
    assert len(rows) == height * (1 + 3 * width)
    assert set(rows[:: 1 + 3 * width]) == {0}
    assert png(width, height, "a") == png(width, height, "a")
    assert width == 1 or png(width, height, "a") != png(width, height, "b")


def asked(**fields):
    settings = WorkloadSettings(name="w", images=ImageSettings(count=2, width=4, height=4))
    return add_extras(
        Request(request_id="r", messages=(Message("system", "S"), Message("user", "U")), **fields), settings
    )


def test_images_follow_from_the_seed_and_the_session():
    one, same, other = asked(session_id="s"), asked(session_id="s"), asked(session_id="t")
    assert len(set(one.images)) == 2
    assert one.images == same.images != other.images
    assert images_of(one, WorkloadSettings(name="w")) == ()


def test_images_in_the_shape_of_each_api():
    """In the first message of a user."""
    request = asked()
    first = request.images[0]
    chat = KINDS["chat"].body(request, "m", Dialect())["messages"]
    assert chat[0]["content"] == "S"
    assert chat[1]["content"][0] == {"type": "image_url", "image_url": {"url": first}}
    assert chat[1]["content"][2] == {"type": "text", "text": "U"}
    item = KINDS["responses"].body(request, "m", Dialect())["input"][1]
    assert item["content"][0] == {"type": "input_image", "image_url": first, "detail": "auto"}
    assert item["content"][2] == {"type": "input_text", "text": "U"}
    (message,) = KINDS["messages"].body(request, "m", Dialect())["messages"]
    source = message["content"][0]["source"]
    assert (source["type"], source["media_type"]) == ("base64", "image/png")
    assert pixels(base64.b64decode(source["data"]))[0][:2] == (4, 4)
    assert message["content"][2] == {"type": "text", "text": "U"}


def test_adapters_take_shares():
    """Those of a mapping, and by Zipf's law those of a list."""

    def models(adapters, **more):
        settings = WorkloadSettings(name="w", adapters=adapters, **more)
        sent = [add_extras(Request(request_id=str(one), prompt="x"), settings).extra["model"] for one in range(4000)]
        return sent.count("a") / len(sent)

    assert models({"a": 3.0, "b": 1.0}) == pytest.approx(0.75, abs=0.03)
    assert models(("a", "b")) == pytest.approx(0.5, abs=0.03)
    assert models(("a", "b"), adapter_skew=1.0) == pytest.approx(2 / 3, abs=0.03)
