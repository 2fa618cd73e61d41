"""Prompts of benchmarks: the built-in ones, the formats of files, and turns as tokens."""

import dataclasses
import json
from collections import Counter
from importlib import resources
from pathlib import Path

import fakes
import pytest

from lookahead_jax.bench.prompts import (
    Prompt,
    builtin_prompts,
    digest,
    encode_turn,
    per_category,
    read_prompts,
)
from lookahead_jax.errors import LookaheadError
from lookahead_jax.prompts import encode_prompt

SHARED = Path(__file__).parent.parent.parent / "shared" / "prompts"
"""Half of Spec-Bench and of HumanEval; beside the checkout, where they are at all."""

CATEGORIES = ["chat", "code", "maths", "summary", "translation", "extraction"]

OWN = {"id": "a", "category": "tea", "turns": ["Boil it.", "And then?"]}
TEXT = {"prompt": "Pour."}
SPEC_BENCH = {"question_id": 7, "category": "qa", "turns": ["How hot?"], "reference": ["Hot."]}
HUMAN_EVAL = {
    "task_id": "HumanEval/7",
    "prompt": "\n\ndef pour():\n",
    "entry_point": "pour",
    "canonical_solution": "    pass\n",
    "test": "assert pour() is None\n",
}


@pytest.fixture
def write(tmp_path):
    """Writes rows, or lines as they are; returns the file's name."""

    def write_rows(*rows):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        path = tmp_path / "prompts.jsonl"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return str(path)

    return write_rows


def refusal(name):
    """What is said of a file, without its name in front: one line."""
    with pytest.raises(LookaheadError) as caught:
        read_prompts(name)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    return message.replace(name, "FILE")


# ------------------------------------------------------------------ built-in


def test_built_in_prompts_cover_every_category():
    prompts = builtin_prompts()
    counts = Counter(prompt.category for prompt in prompts)
    assert list(counts) == CATEGORIES
    assert set(counts.values()) <= {3, 4}
    assert len({prompt.id for prompt in prompts}) == len(prompts) >= 20
    assert all(prompt.id.startswith(f"{prompt.category}-") for prompt in prompts)
    assert {p.category for p in prompts if len(p.turns) == 2} == {"chat", "maths"}
    assert {p.category for p in prompts if p.continues} == {"code"}
    assert all(len(p.turns) == 1 and not p.turns[0].startswith(" ") for p in prompts if p.continues)
    assert not any(prompt.system for prompt in prompts)  # Some chat templates have no place for it.


def test_built_in_prompts_are_of_several_lengths():
    prompts = builtin_prompts()
    words = {prompt.id: len(prompt.turns[0].split()) for prompt in prompts}
    longest = {
        category: max(words[p.id] for p in prompts if p.category == category)
        for category in CATEGORIES
    }
    assert min(words.values()) < 15
    assert sum(count < 50 for count in words.values()) >= 4
    assert sum(50 <= count < 200 for count in words.values()) >= 8
    assert sum(300 <= count <= 500 for count in words.values()) >= 3
    assert longest["summary"] > 300
    assert longest["extraction"] > 300
    assert longest["translation"] > 200
    # A byte is a token of tiny-bytes, and most models have far fewer tokens than that.
    assert max(len(turn.encode()) for p in prompts for turn in p.turns) < 3000


def test_the_first_of_each_category_fit_a_small_context():
    """With 128 tokens of output, that of tiny-bytes: a quick run covers all categories there."""
    for prompt in per_category(builtin_prompts(), 1):
        assert len(prompt.turns) == 1
        assert len(prompt.turns[0].encode()) + 128 < 512, prompt.id


def test_built_in_prompts_are_clean_text():
    for prompt in builtin_prompts():
        for turn in prompt.turns:
            assert turn == turn.strip() or prompt.continues
            assert "  " not in turn or prompt.category == "code"
            assert all(letter.isprintable() or letter == "\n" for letter in turn), prompt.id
            letters = {letter for letter in turn if not letter.isascii()}
            assert not letters or prompt.category == "translation", (prompt.id, letters)


def test_code_to_be_continued_is_python_so_far():
    (prompt,) = (prompt for prompt in builtin_prompts() if prompt.continues)
    start = prompt.turns[0]
    assert start.endswith(".\n")
    compile(start + '    """\n', prompt.id, "exec")


def test_built_in_prompts_are_data_of_the_package():
    """So they are found wherever it is installed; the wheel holds what pyproject.toml lists."""
    file = resources.files("lookahead_jax.bench") / "builtin.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in rows] == [prompt.id for prompt in builtin_prompts()]
    assert all({"id", "category", "turns"} <= set(row) for row in rows)
    assert read_prompts("builtin") == builtin_prompts()


# ------------------------------------------------------------------ formats


def test_conversations(write):
    code = {"id": 3, "category": "tea", "turns": ["pour("], "continues": True}
    full = OWN | {"id": "b", "system": "Be brief.", "source": "left alone"}
    assert read_prompts(write(OWN, code, full)) == (
        Prompt("a", "tea", ("Boil it.", "And then?")),
        Prompt("3", "tea", ("pour(",), continues=True),
        Prompt("b", "tea", ("Boil it.", "And then?"), "Be brief."),
    )


def test_single_prompts(write):
    full = {"prompt": "Stir. ", "id": 9, "category": "tea", "system": "Be brief.", "seed": 4}
    assert read_prompts(write(TEXT, "", full, TEXT)) == (
        Prompt("1", "prompt", ("Pour.",)),
        Prompt("9", "tea", ("Stir. ",), "Be brief."),
        Prompt("4", "prompt", ("Pour.",)),
    )


def test_spec_bench(write):
    mt_bench = ["writing", "roleplay", "reasoning", "math"]
    mt_bench += ["coding", "extraction", "stem", "humanities"]
    others = ["translation", "summarization", "qa", "math_reasoning", "rag"]
    rows = [
        SPEC_BENCH | {"question_id": number, "category": category, "turns": ["How?", "Why?"]}
        for number, category in enumerate(mt_bench + others, start=81)
    ]
    found = read_prompts(write(*rows))
    assert [prompt.category for prompt in found] == ["multi-turn"] * 8 + others
    assert [prompt.id for prompt in found] == [str(number) for number in range(81, 94)]
    assert found[-1] == Prompt("93", "rag", ("How?", "Why?"))


def test_human_eval(write):
    """The code is as it is, blank lines in front too."""
    prompt = Prompt("HumanEval/7", "humaneval", ("\n\ndef pour():\n",), continues=True)
    assert read_prompts(write(HUMAN_EVAL)) == (prompt,)


def test_categories_of_mt_bench_are_ours_in_our_format(write):
    (prompt,) = read_prompts(write(OWN | {"category": "writing"}))
    assert prompt.category == "writing"


def test_a_byte_order_mark_and_other_alphabets(tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + '{"prompt": "Grün 茶 🍵"}\r\n\r\n'.encode())
    assert read_prompts(str(path)) == (Prompt("1", "prompt", ("Grün 茶 🍵",)),)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/prompts beside this checkout")
def test_spec_bench_itself():
    prompts = read_prompts(str(SHARED / "spec_bench_question.jsonl"))
    sizes = Counter((prompt.category, len(prompt.turns)) for prompt in prompts)
    assert sizes == {
        ("multi-turn", 2): 40,
        ("translation", 1): 40,
        ("summarization", 1): 40,
        ("qa", 1): 40,
        ("math_reasoning", 1): 40,
        ("rag", 1): 40,
    }
    assert [prompt.id for prompt in prompts] == [str(number) for number in range(81, 561, 2)]
    assert not any(prompt.continues or prompt.system for prompt in prompts)
    assert len(per_category(prompts, 2)) == 12


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/prompts beside this checkout")
def test_human_eval_itself():
    prompts = read_prompts(str(SHARED / "humaneval.jsonl"))
    assert [prompt.id for prompt in prompts] == [f"HumanEval/{n}" for n in range(0, 164, 2)]
    assert {(prompt.category, prompt.continues) for prompt in prompts} == {("humaneval", True)}
    assert all("def " in prompt.turns[0] for prompt in prompts)


# ------------------------------------------------------------------ bad files

NOT_EMPTY = "a text that is not empty, got"
NO_ID = "an integer or a text that is not empty, got"
BAD_ROWS = [
    ("{", "expected one JSON object in UTF-8 on the line"),
    ('["prompt"]', "expected a JSON object, got a list"),
    ('{"prompt": "\\ud800"}', "expected one JSON object in UTF-8 on the line"),
    (
        {"text": "Pour.", "id": 1},
        "expected the keys question_id and turns (Spec-Bench); or task_id and prompt (HumanEval); "
        'or id and turns (conversations); or prompt (single prompts); got ["text", "id"]',
    ),
    (TEXT | {"prompt": 5}, f'expected "prompt" to be {NOT_EMPTY} 5'),
    (TEXT | {"prompt": " \n"}, f'expected "prompt" to be {NOT_EMPTY} " \\n"'),
    (TEXT | {"prompt": [9] * 99}, f'expected "prompt" to be {NOT_EMPTY} [{"9, " * 13}'),
    (TEXT | {"id": True}, f'expected "id" to be {NO_ID} true'),
    (TEXT | {"id": None}, f'expected "id" to be {NO_ID} null'),
    (TEXT | {"id": ""}, f'expected "id" to be {NO_ID} ""'),
    (TEXT | {"category": 1}, f'expected "category" to be {NOT_EMPTY} 1'),
    (TEXT | {"system": ["Be brief."]}, 'expected "system" to be a text, got ["Be brief."]'),
    (OWN | {"id": 1.5}, f'expected "id" to be {NO_ID} 1.5'),
    (OWN | {"category": ""}, f'expected "category" to be {NOT_EMPTY} ""'),
    ({"id": 1, "turns": ["Pour."]}, f'expected "category" to be {NOT_EMPTY} none'),
    (OWN | {"turns": "Pour."}, 'expected "turns" to be a list of texts, got "Pour."'),
    (OWN | {"turns": []}, 'expected "turns" to be a list of texts, got []'),
    (
        OWN | {"turns": ["Pour.", " "]},
        'expected "turns" to be a list of texts that are not empty, got ["Pour.", " "]',
    ),
    (
        OWN | {"turns": ["Pour.", 2]},
        'expected "turns" to be a list of texts that are not empty, got ["Pour.", 2]',
    ),
    (OWN | {"continues": 1}, 'expected "continues" to be true or false, got 1'),
    (OWN | {"system": 0}, 'expected "system" to be a text, got 0'),
    (SPEC_BENCH | {"question_id": None}, f'expected "question_id" to be {NO_ID} null'),
    (SPEC_BENCH | {"category": None}, f'expected "category" to be {NOT_EMPTY} null'),
    (SPEC_BENCH | {"turns": {}}, 'expected "turns" to be a list of texts, got {}'),
    (HUMAN_EVAL | {"task_id": []}, f'expected "task_id" to be {NO_ID} []'),
    (HUMAN_EVAL | {"prompt": ""}, f'expected "prompt" to be {NOT_EMPTY} ""'),
]


@pytest.mark.parametrize(("row", "said"), BAD_ROWS, ids=[str(n) for n in range(len(BAD_ROWS))])
def test_a_bad_row_is_refused_in_one_line(write, row, said):
    assert refusal(write("", row)) == f"FILE, line 2: {said}"


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (OWN, TEXT, ("conversations", "single prompts")),
        (TEXT, OWN, ("single prompts", "conversations")),
        (SPEC_BENCH, OWN, ("Spec-Bench", "conversations")),
        (HUMAN_EVAL, SPEC_BENCH, ("HumanEval", "Spec-Bench")),
        (TEXT, HUMAN_EVAL, ("single prompts", "HumanEval")),
    ],
)
def test_a_file_has_one_format(write, first, second, named):
    expected = f"expected a row of {named[0]}, as those before it, got one of {named[1]}"
    assert refusal(write(first, second)) == f"FILE, line 2: {expected}"


@pytest.mark.parametrize(
    ("rows", "repeated"),
    [
        ([OWN, OWN | {"turns": ["Stir."]}], "'a'"),
        ([SPEC_BENCH, SPEC_BENCH], "'7'"),
        ([HUMAN_EVAL, HUMAN_EVAL], "'HumanEval/7'"),
        ([OWN | {"id": 1}, OWN | {"id": "1"}], "'1'"),
        ([TEXT | {"id": 2}, TEXT], "'2'"),  # The second is on line 2.
    ],
)
def test_every_id_is_there_once(write, rows, repeated):
    said = f"FILE, line 2: every id must be there once, got {repeated} again"
    assert refusal(write(*rows)) == said


def test_files_that_cannot_be_read(tmp_path, write):
    assert refusal(str(tmp_path)) == "cannot read FILE: Is a directory"
    assert refusal(str(tmp_path / "none")) == "cannot read FILE: No such file or directory"
    assert refusal(write("", " ")) == "FILE: expected one JSON object a line, got no rows"
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b'{"prompt": "tea"}\n{"prompt": "gr\xfcn"}\n')
    said = "FILE, line 2: expected one JSON object in UTF-8 on the line"
    assert refusal(str(path)) == said


# ------------------------------------------------------------------ sets


def test_the_first_of_each_category_are_kept_in_their_order():
    prompts = [Prompt(str(n), category, ("?",)) for n, category in enumerate("abacbbac")]
    kept = [[prompt.id for prompt in per_category(prompts, count)] for count in (1, 2, 3, 9)]
    assert kept[0] == ["0", "1", "3"]
    assert kept[1] == ["0", "1", "2", "3", "4", "7"]
    assert kept[2] == kept[3] == ["0", "1", "2", "3", "4", "5", "6", "7"]
    assert per_category(iter(prompts), None) == tuple(prompts)
    with pytest.raises(LookaheadError, match="at least 1 prompt of each category, got 0"):
        per_category(prompts, 0)


def test_a_digest_is_of_every_field_and_of_the_order():
    prompt = Prompt("a", "tea", ("Boil it.", "And then?"))
    other = Prompt("b", "tea", ("Grün",))
    changes = {
        "id": "c",
        "category": "coffee",
        "turns": ("Boil it.", "And then"),
        "system": "",
        "continues": True,
    }
    assert set(changes) == {field.name for field in dataclasses.fields(Prompt)}
    sets = [[dataclasses.replace(prompt, **{key: value}), other] for key, value in changes.items()]
    sets += [[prompt, other], [other, prompt], [prompt], []]
    # Turns that are cut elsewhere, though the same when put together.
    sets += [[dataclasses.replace(prompt, turns=("Boil it.And then?",)), other]]
    digests = [digest(prompts) for prompts in sets]
    assert len(set(digests)) == len(digests)
    assert all(len(one) == 12 and set(one) <= set("0123456789abcdef") for one in digests)
    assert digest(iter([prompt, other])) == digest((prompt, other))


def test_a_digest_stays_what_it_is():
    """Results of earlier runs are told apart by it."""
    prompts = [Prompt("a", "tea", ("Boil it.", "Grün?"), "Be brief."), Prompt("b", "x", ("y",))]
    assert digest(prompts) == "c0385b0850ce"


def test_a_digest_is_not_of_the_format(write):
    one = read_prompts(write(TEXT | {"id": 7, "category": "qa"}))
    assert one == (Prompt("7", "qa", ("Pour.",)),)
    assert digest(one) == digest(read_prompts(write(SPEC_BENCH | {"turns": ["Pour."]})))


# ------------------------------------------------------------------ tokens

TEA = Prompt("t", "tea", ("Boil it.", "And then?", "Done?"))
BRIEF = dataclasses.replace(TEA, system="Be brief.")
CODE = dataclasses.replace(TEA, turns=("\ndef pour(", "x"), continues=True)


def model(tokenizer):
    return fakes.script_model("tea", tokenizer)


def read_back(tokenizer, prompt, answers, chat_template=None):
    tokens = encode_turn(model(tokenizer), prompt, answers, chat_template=chat_template)
    assert isinstance(tokens, tuple)
    return tokenizer.decode(tokens)


def test_turns_with_a_chat_template():
    chat = fakes.ChatTokenizer()
    assert read_back(chat, TEA, []) == "<user:Boil it.>"
    assert read_back(chat, TEA, ["I did."]) == "<user:Boil it.><assistant:I did.><user:And then?>"
    assert read_back(chat, BRIEF, []) == "<system:Be brief.><user:Boil it.>"
    assert read_back(chat, BRIEF, ["I did.", ""], True) == (
        "<system:Be brief.><user:Boil it.><assistant:I did.>"
        "<user:And then?><assistant:><user:Done?>"
    )


@pytest.mark.parametrize(
    ("tokenizer", "chat_template"),
    [(fakes.ByteTokenizer(), None), (fakes.ByteTokenizer(), False), (fakes.ChatTokenizer(), False)],
)
def test_turns_as_plain_text(tokenizer, chat_template):
    assert read_back(tokenizer, TEA, [], chat_template) == "Boil it."
    assert read_back(tokenizer, TEA, ["I did."], chat_template) == "Boil it.\n\nI did.\n\nAnd then?"
    assert read_back(tokenizer, TEA, ["", "No."], chat_template) == (
        "Boil it.\n\nAnd then?\n\nNo.\n\nDone?"
    )
    assert read_back(tokenizer, BRIEF, ["I did."], chat_template) == (
        "Be brief.\n\nBoil it.\n\nI did.\n\nAnd then?"
    )


@pytest.mark.parametrize("chat_template", [None, True, False])
def test_what_is_to_be_continued_is_never_put_into_a_chat_template(chat_template):
    chat = fakes.ChatTokenizer()
    assert read_back(chat, CODE, [], chat_template) == "\ndef pour("
    assert read_back(chat, CODE, [")\n"], chat_template) == "\ndef pour(\n\n)\n\n\nx"


def test_the_first_turn_is_what_generate_makes_of_it():
    for tokenizer in (fakes.ByteTokenizer(), fakes.ChatTokenizer()):
        lm = model(tokenizer)
        for prompt in builtin_prompts():
            template = False if prompt.continues else None
            expected = encode_prompt(lm, prompt.turns[0], chat_template=template, system=None)
            assert encode_turn(lm, prompt, [], chat_template=None) == expected


def test_turns_that_a_model_cannot_read():
    bare = dataclasses.replace(model(None), tokenizer=None, name="bare")
    for answers in ([], ["I did."]):
        for chat_template in (None, True, False):
            with pytest.raises(LookaheadError, match="model bare has no tokenizer"):
                encode_turn(bare, TEA, answers, chat_template=chat_template)
    with pytest.raises(LookaheadError, match="prompt t has 3 turns: expected answers to"):
        encode_turn(model(fakes.ChatTokenizer()), TEA, ["a", "b", "c"], chat_template=None)
    blank = dataclasses.replace(TEA, turns=(" ",))
    with pytest.raises(LookaheadError, match="the prompt is empty"):
        encode_turn(model(fakes.ByteTokenizer()), blank, [], chat_template=None)
