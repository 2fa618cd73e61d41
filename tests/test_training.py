"""The training of tiny-bytes: the text, the step, interruptions, and the checkpoint it writes."""

import inspect
import json
import math
from dataclasses import asdict, fields, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lookahead_jax.errors import LookaheadError
from lookahead_jax.models import load_model
from lookahead_jax.models.training.__main__ import main
from lookahead_jax.models.training.corpus import END, Corpus, read_corpus, standard_library
from lookahead_jax.models.training.export import END_TEXT, byte_tokenizer, export
from lookahead_jax.models.training.loop import TrainingSettings, init_state, mean_loss
from lookahead_jax.models.training.plot import plot_losses
from lookahead_jax.models.training.run import Loss, read_losses, train

SMALL = TrainingSettings(
    steps=7, batch_size=2, length=16, warm_up=2, hidden_size=20, num_layers=1, num_heads=2
)


@pytest.fixture(autouse=True, scope="module")
def promotion():
    """optax mixes dtypes and ranks as jax does by default."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def repeating():
    text = np.frombuffer(b"for i in range(3): pass\n" * 40, np.uint8).astype(np.uint16)
    return Corpus(text, text[:200])


def parameters(state):
    return jax.tree.map(np.asarray, state.params)


def assert_same(state, other):
    jax.tree.map(np.testing.assert_array_equal, parameters(state), parameters(other))
    jax.tree.map(np.testing.assert_array_equal, state.optimiser, other.optimiser)


# The text


def write_sources(directory, count=200):
    for i in range(count):
        path = directory / f"package{i % 3}" / f"module_{i}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"x{i} = {i}\n")
    (directory / "package0" / "notes.txt").write_text("not a source")
    (directory / "test").mkdir()
    (directory / "test" / "test_x.py").write_text("left out")


def test_files_are_split_by_name_and_ended(tmp_path):
    write_sources(tmp_path)
    corpus = read_corpus(tmp_path, 4)

    def files(tokens):
        text = "".join(chr(t) if t < END else "\0" for t in tokens)
        assert text.endswith("\0")
        return text.rstrip("\0").split("\0")

    training, held_out = files(corpus.training), files(corpus.held_out)
    assert sorted(training + held_out) == sorted(f"x{i} = {i}\n" for i in range(200))
    assert 1 <= len(held_out) < len(training) / 4
    (tmp_path / "package1" / "zz.py").write_text("new\n")  # moves no other file
    again = read_corpus(tmp_path, 4)
    assert set(held_out) <= set(files(again.held_out))
    assert set(training) <= set(files(again.training))


def test_too_little_text_is_named(tmp_path):
    (tmp_path / "a.py").write_text("x")
    with pytest.raises(LookaheadError, match=r"more than 16 bytes of training text .*, got 2$"):
        read_corpus(tmp_path, 16)


def test_the_standard_library_is_there():
    corpus = read_corpus(standard_library(), 512)
    assert len(corpus.training) > 5e6
    assert 0.01 < len(corpus.held_out) / len(corpus.training) < 0.3


def test_batches_are_a_function_of_seed_and_step():
    corpus = repeating()
    first = corpus.batch(1, 2, 3, 5)
    assert first.shape == (3, 6)
    np.testing.assert_array_equal(first, corpus.batch(1, 2, 3, 5))
    for seed, step in ((1, 3), (2, 2)):
        assert not np.array_equal(first, corpus.batch(seed, step, 3, 5))


# The step


def test_the_loss_is_the_cross_entropy_of_the_next_byte():
    """A model that sees nothing knows nothing; one with a head for one letter knows that one."""
    blank = jax.tree.map(jnp.zeros_like, init_state(SMALL).params)
    tokens = jnp.full((2, 17), 65, jnp.int32)
    loss = jax.jit(partial(mean_loss, config=SMALL.model))
    assert loss(blank, tokens) == pytest.approx(math.log(END + 1))
    # Embeddings of ones pass the layers unchanged, and the tied head scores 5 for the letter.
    table = blank["embed"]["weight"].at[65].set(1.0)
    knowing = {**blank, "embed": {"weight": table}, "final_norm": {"scale": jnp.full(20, 0.25)}}
    expected = math.log(math.exp(5) + END) - 5
    assert loss(knowing, tokens) == pytest.approx(expected, rel=1e-3)


def test_the_loss_falls(tmp_path):
    settings = replace(SMALL, steps=40, learning_rate=1e-2)
    train(tmp_path, repeating(), settings, save_every=40)
    losses = read_losses(tmp_path)
    assert [loss.step for loss in losses] == list(range(1, 41))
    assert losses[-1].training < 0.6 * losses[0].training
    assert losses[-1].held_out == pytest.approx(losses[-1].training, abs=0.5)


# Interruptions


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    return train(directory, repeating(), SMALL, save_every=3), directory


@pytest.mark.parametrize(("at", "stop"), [(2, True), (2, False), (5, False)])
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path, uninterrupted, at, stop):
    """One that is stopped saves the step; after any other end it goes on from a checkpoint."""
    state, directory = uninterrupted
    seen = []

    def progress(loss):
        seen.append(loss.step)
        if loss.step == at and not stop:
            raise RuntimeError("the machine is gone")

    if stop:
        stopped = train(
            tmp_path,
            repeating(),
            SMALL,
            save_every=3,
            progress=progress,
            should_stop=lambda: len(seen) == at - 1,
        )
        assert int(stopped.step) == at
    else:
        with pytest.raises(RuntimeError):
            train(tmp_path, repeating(), SMALL, save_every=3, progress=progress)
        with (tmp_path / "losses.jsonl").open("a") as file:
            file.write('{"step": 9')  # killed while writing
    steps = []
    resumed = train(
        tmp_path, repeating(), SMALL, save_every=3, progress=lambda loss: steps.append(loss.step)
    )
    assert steps[0] == (at if stop else at - at % 3) + 1
    assert_same(resumed, state)
    assert read_losses(tmp_path) == read_losses(directory)


def test_a_finished_run_has_nothing_left_to_do(uninterrupted):
    state, directory = uninterrupted
    again = train(directory, repeating(), SMALL, progress=lambda loss: pytest.fail("a step"))
    assert_same(state, again)


def test_other_settings_are_refused(tmp_path):
    (tmp_path / "settings.json").write_text(
        json.dumps({**asdict(SMALL), "text": repeating().fingerprint})
    )
    with pytest.raises(LookaheadError, match=r"a training with seed = 0, and 5 was asked for"):
        train(tmp_path, repeating(), replace(SMALL, seed=5))
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(LookaheadError, match=r"settings.json is damaged"):
        train(tmp_path, repeating(), SMALL)
    (tmp_path / "losses.jsonl").write_text("{\n")
    with pytest.raises(LookaheadError, match=r"losses.jsonl is damaged"):
        read_losses(tmp_path)


def test_the_command_has_the_defaults_of_the_settings():
    """They stand there twice, because the settings bring jax, and --help should not."""
    options = inspect.signature(main).parameters
    for field in fields(TrainingSettings):
        name = {"num_layers": "layers"}.get(field.name, field.name)
        if name in options:
            assert options[name].default == field.default, name


# What comes out


def test_the_exported_model_is_the_trained_one(tmp_path, uninterrupted):
    state, _ = uninterrupted
    export(tmp_path, state.params, SMALL)
    lm = load_model(tmp_path, progress=lambda done, total: None)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(jnp.float32), state.params)
    jax.tree.map(np.testing.assert_array_equal, lm.params, rounded)
    assert lm.forward.config == SMALL.model
    assert lm.stop_tokens == (END,)
    assert lm.tokenizer.encode("a\n") == [97, 10]
    assert lm.tokenizer.decode([97, END, 98]) == "ab"
    assert json.loads((tmp_path / "config.json").read_text())["max_position_embeddings"] == 16


@pytest.mark.parametrize(
    "text", ["", "def f(x):\n\treturn x\r\n", "naïve, 東京 🙂\0\x7f", END_TEXT]
)
def test_tokens_are_bytes(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text).ids
    assert ids == ([END] if text == END_TEXT else list(text.encode()))
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_curve_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="needs the extra plot")
    losses = [Loss(i, 5 / i, 5 / i if i % 3 == 0 else None) for i in range(1, 8)]
    plot_losses(tmp_path / "loss.png", losses, 100)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
