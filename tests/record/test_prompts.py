"""Blocks are equal exactly as far as prompts are, for one salt; a conversation that grows is one session."""

from servebench.record.prompts import ID_BITS, Hasher, Sessions, hash_id, prompt_text

SIZE = 64
HASHER = Hasher("salt", SIZE)
SYSTEM = {"role": "system", "content": "You are terse. " * 20}


def said(*texts, **more):
    turns = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": [SYSTEM, *turns], **more}


def data_of(body):
    return prompt_text(body, HASHER).encode()


class Placed:
    """Places prompts in sessions; the answer to the n-th ends at 10 n."""

    def __init__(self):
        self.sessions, self.count = Sessions(HASHER), 0

    def place(self, body):
        self.count += 1
        data = data_of(body)
        return self.sessions.place(data, HASHER.blocks(data), 10 * self.count)


def test_blocks_are_equal_as_far_as_prompts_are():
    first, second = (HASHER.blocks(data_of(said(text * 50))) for text in ("a cat ", "a dog "))
    shared = len(data_of(said(""))) // SIZE
    assert first[:shared] == second[:shared]
    assert not set(first[shared:]) & set(second[shared:])


def test_a_block_depends_on_all_before_it():
    same = b"x" * SIZE
    assert len(set(HASHER.blocks(same * 3))) == 3


def test_another_salt_gives_other_ids_and_all_are_exact_doubles():
    data = data_of(said("hello " * 40))
    ids, others = ({hash_id(one) for one in Hasher(salt, SIZE).blocks(data)} for salt in ("salt", "pepper"))
    assert ids
    assert not ids & others
    assert max(ids | others) < 2**ID_BITS


def test_a_partial_block_has_no_id():
    assert HASHER.blocks(b"x" * (SIZE - 1)) == []


def test_a_conversation_that_grows_is_one_session():
    placed = Placed()
    assert placed.place(said("hello")) == (1, None)
    assert placed.place(said("hello", "hi", "and now?")) == (1, 10)
    assert placed.place(said("hello", "hi", "and now?", "this", "more " * 100)) == (1, 20)


def test_a_common_system_prompt_is_no_session():
    placed = Placed()
    assert [placed.place(said(text)).session for text in ("hello", "hello there", "hell", "hello")] == [1, 2, 3, 4]


def test_a_second_continuation_is_a_session_of_its_own():
    placed = Placed()
    placed.place(said("hello"))
    assert placed.place(said("hello", "hi", "left")).session == 1
    assert placed.place(said("hello", "hi", "right")).session == 2
    assert placed.place(said("hello", "hi", "right", "so", "on")) == (2, 30)


def test_marks_for_a_cache_do_not_change_a_prompt():
    def marked(body, at):
        turns = [
            dict(turn, cache_control={"type": "ephemeral"}) if n == at else turn
            for n, turn in enumerate(body["messages"])
        ]
        return {"messages": turns}

    placed = Placed()
    placed.place(marked(said("hello"), 1))
    assert placed.place(marked(said("hello", "hi", "on"), 3)) == (1, 10)


def test_a_text_that_is_continued_is_one_session():
    placed = Placed()
    placed.place({"prompt": "Once upon a time" * 10})
    assert placed.place({"prompt": "Once upon a time" * 10 + " there was"}) == (1, 10)


def test_tools_come_first_and_images_have_no_length():
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBOR" * 4000}}
    body = {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, image]}],
        "tools": [{"name": "look"}],
    }
    text = prompt_text(body, HASHER)
    assert text.index("look") < text.index("what is it?")
    assert "iVBOR" not in text
    assert len(text) < 200
    other = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "jVBOR" * 4000}}
    body["messages"][0]["content"][1] = other
    assert prompt_text(body, HASHER) != text


def test_token_ids_are_a_prompt():
    first, second = (HASHER.blocks(data_of({"prompt": [*range(100), last]})) for last in (1, 2))
    assert first[:-1] == second[:-1]
    assert len(first) > 2
