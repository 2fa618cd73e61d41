"""The README's Python runs as it stands there."""

import re
from pathlib import Path

import fakes
import jax.numpy as jnp

from lookahead_jax import LookaheadConfig, autoregressive, generate
from lookahead_jax.models import load_model

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_functional_layer_writes_what_ordinary_decoding_writes(tiny):
    (block,) = [block for block in BLOCKS if "decoding.round" in block]
    prompt = [1, 6, 124, 103, 48, 103, 119]
    given = {
        "lm": tiny,
        "config": LookaheadConfig(window_size=3, ngram_size=3, guess_set_size=3),
        "prompt": jnp.asarray([prompt]),
        "prompt_length": jnp.asarray([len(prompt)]),
        "max_new_tokens": jnp.asarray([24]),
        "stop_tokens": jnp.asarray([[2]]),
        "capacity": 128,
    }
    exec(block, given)
    text = given["state"].sequences
    ordinary = autoregressive.generate(tiny, prompt, max_new_tokens=24)
    assert text.tokens[0, len(prompt) : text.length[0]].tolist() == list(ordinary.tokens)


def test_the_example_of_options_runs(capsys):
    (block,) = [block for block in BLOCKS if "completions" in block]
    lm = fakes.script_model("the sea, the sea. " * 3, fakes.ChatTokenizer())
    given = {"lm": lm, "generate": generate}
    exec(block, given)
    assert len(given["sampled"]) == 2
    assert [len(result.logprobs.raw) for result in given["sampled"]] == [
        len(result.tokens) for result in given["sampled"]
    ]
    answers = capsys.readouterr().out.splitlines()
    assert sorted(line[0] for line in answers[:3]) == ["0", "1", "2"]
    assert given["chat"].messages[-1] == {"role": "assistant", "content": answers[3]}


def test_the_example_of_several_devices_runs(capsys):
    (block,) = [block for block in BLOCKS if "make_mesh" in block]
    exec(block, {"load_model": load_model, "generate": generate})
    alone = generate(load_model("tiny-bytes"), "def __init__(self", max_new_tokens=64)
    assert capsys.readouterr().out == alone.text + "\n"


def test_the_example_of_a_benchmark_runs(capsys):
    (block,) = [block for block in BLOCKS if "measure_grid" in block]
    exec(block, {"lm": fakes.script_model("the sea, the sea. " * 3)})
    printed = capsys.readouterr().out
    assert printed.startswith("W=2 N=3 G=2 ")
    assert printed.endswith(" True\n")
