"""`lookahead-jax chat` on the model of fake_engine: piped lines, and a terminal with Ctrl-C."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time

import fake_engine
import pytest
from fake_engine import Fake

from lookahead_jax.cli import run
from lookahead_jax.cli.chat import HELP
from lookahead_jax.config import LookaheadConfig
from lookahead_jax.processors import BannedTokens
from lookahead_jax.sampling import Greedy, Sample

PROGRAM = [sys.executable, fake_engine.__file__]
GREEN, RESET = "\x1b[32m", "\x1b[0m"


@pytest.fixture
def talk(monkeypatch, capsys):
    """Runs a chat over lines of stdin; returns exit code, stdout, stderr and the fake."""

    def talk(lines, *options, fake=None):
        data = lines if isinstance(lines, bytes) else "".join(f"{x}\n" for x in lines).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        fake = fake or Fake()
        code = run(["chat", *options], engine=fake.engine())
        captured = capsys.readouterr()
        return code, captured.out, captured.err, fake

    return talk


def test_answers_stream_and_a_line_tells_what_each_cost(talk):
    code, out, err, fake = talk(["is sky the blue", "why"])
    assert (code, out) == (0, "blue the sky is\nwhy\n")
    assert err == (
        "4 tokens in 2 model calls (2.00 tokens per call), 4 tokens read\n"
        "1 token in 1 model call (1.00 tokens per call), 1 token read\n"
    )
    assert fake.loaded == [("smollm2-135m", "float32")]
    assert [message["content"] for message in fake.chats[0].messages] == [
        "is sky the blue",
        "blue the sky is",
        "why",
        "why",
    ]


def test_options_reach_the_chat(talk):
    options = "-m m --system s -W 3 -N 4 -G 2 --pool-slots 8 -n 9 --temperature 0.5 --seed 2"
    _, _, _, fake = talk([], *options.split(), "--ban", "7", "--stop", r"\n")
    assert fake.chats[0].given == {
        "config": LookaheadConfig(3, 4, 2, pool_slots=8),
        "system": "s",
        "max_new_tokens": 9,
        "sampling": Sample(0.5, seed=2),
        "processors": (BannedTokens([7]),),
        "stop_strings": ("\n",),
    }
    _, _, _, fake = talk([])
    assert fake.chats[0].given == {
        "config": LookaheadConfig(),
        "system": None,
        "max_new_tokens": 256,
        "sampling": Greedy(),
    }


def test_lines_are_messages_without_what_surrounds_them(talk):
    _, out, _, fake = talk("\ufeffa b\r\n\n   \n /exit c \nd".encode())
    assert out == "b a\nc /exit\nd\n"
    said = [m["content"] for m in fake.chats[0].messages if m["role"] == "user"]
    assert said == ["a b", "/exit c", "d"]


def test_an_answer_that_is_cut_says_so(talk, monkeypatch):
    made = fake_engine.result
    monkeypatch.setattr(fake_engine, "result", lambda text, **_: made(text, finish_reason="length"))
    _, _, err, _ = talk(["a b"], "-n", "2")
    assert err.endswith("2 tokens read; cut at --max-new-tokens 2\n")


def test_commands(talk):
    code, out, err, fake = talk(["/stats now", "/help", "/nosuch thing", "/", "a b", "/exit", "c"])
    assert (code, out) == (0, "b a\n")
    assert err.startswith(
        f"no turns yet\n{HELP}\nno command /nosuch: /help lists them\n"
        "no command /: /help lists them\n2 tokens"
    )
    assert len(fake.chats[0].turns) == 1


def test_the_help_names_every_command():
    for name in ("/stats", "/reset", "/help", "/exit", "Ctrl-C", "Ctrl-D"):
        assert name in HELP


def test_stats(talk):
    _, _, err, _ = talk(["a b c d", "a b", "/stats"])
    lines = [line.split("  ", 1) for line in err.splitlines()[2:]]
    assert {name: value.strip() for name, value in lines} == {
        "turns": "2",
        "tokens": "6",
        "model calls": "3, 2.00 tokens per call",
        "tokens read": "4 + 2; without the kept cache 14",
        "n-gram pool": "2.0 kB",
        # 4 + 4 + 2 + 2 tokens less the last one, each 2 x 2 layers x 1 head x 5 floats.
        "cache": "11 of 64 tokens, 880 bytes",
    }


def test_reset_forgets_the_conversation(talk):
    _, _, err, fake = talk(["a b", "/reset", "/stats", "c"])
    assert err.splitlines()[1:3] == ["the conversation is forgotten", "no turns yet"]
    assert [message["content"] for message in fake.chats[0].messages] == ["c", "c"]


def test_what_a_turn_cannot_do_is_one_line_and_the_chat_goes_on(talk):
    code, out, err, fake = talk(b"toolong\ncaf\xe9\na b\n")
    assert (code, out) == (0, "b a\n")
    assert err.splitlines()[:2] == [
        "error: the prompt is longer than the context of 8 tokens",
        "error: a message must be UTF-8 text; the line holds other bytes",
    ]
    assert len(fake.chats[0].turns) == 1


def test_a_model_that_cannot_chat_is_refused(talk):
    code, out, err, _ = talk(["a"], "-m", "plain")
    assert (code, out) == (2, "")
    assert err == "error: model plain has no chat template: expected a chat model\n"


def test_a_bug_keeps_its_traceback(talk):
    with pytest.raises(RuntimeError, match="a bug"):
        talk(["bug"])


def test_ctrl_c_stops_the_answer_keeps_what_was_written_and_goes_on(talk):
    handler = signal.getsignal(signal.SIGINT)
    code, out, err, fake = talk(["d c interrupt b a", "e"])
    assert (code, out) == (0, "a b interrupt\ne\n")
    assert err.splitlines()[0].endswith("5 tokens read; stopped")
    assert "stopped" not in err.splitlines()[1]
    assert fake.chats[0].messages[1] == {"role": "assistant", "content": "a b interrupt"}
    assert signal.getsignal(signal.SIGINT) is handler


def test_ctrl_c_in_the_first_model_call_shows_what_it_gave(talk):
    code, out, _, fake = talk(["b a interrupt", "c"])
    assert (code, out) == (0, "interrupt\nc\n")
    assert fake.chats[0].messages[1]["content"] == "interrupt"


def test_a_chat_in_another_thread_leaves_signals_alone(talk):
    codes = []
    thread = threading.Thread(target=lambda: codes.append(talk(["b a"])[:2]))
    thread.start()
    thread.join()
    assert codes == [(0, "a b\n")]


def test_accepted_runs_are_coloured_where_there_are_colours(talk, monkeypatch):
    for name in ("NO_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, out, _, _ = talk(["b longer a", "c"], "--show-accepted")
    legend, *answers = out.splitlines()
    assert legend == f"{GREEN}this colour{RESET}: several tokens that one model call gave"
    assert answers == [f"a{GREEN} longer{RESET} b", "c"]
    _, out, _, _ = talk(["b longer a"])
    assert out == "a longer b\n"


@pytest.mark.parametrize("variable", ["NO_COLOR", None])
def test_no_colours_where_there_are_none(talk, monkeypatch, variable):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    if variable:
        monkeypatch.setenv(variable, "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, err, _ = talk(["b longer a"], "--show-accepted")
    assert "\x1b[32m" not in out
    assert out == "a longer b\n"
    assert err.startswith("note: --show-accepted needs a terminal with colours as output")


def test_a_piped_script_through_the_program():
    script = b"is sky the blue\n/nosuch\nwhy\n"
    done = subprocess.run([*PROGRAM, "chat"], input=script, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"blue the sky is\nwhy\n")
    assert done.stderr.count(b"\n") == 3


class Terminal:
    """The program on a pseudo-terminal: what it shows, and keys to press."""

    def __init__(self, *options):
        self.master, slave = pty.openpty()
        # A plain terminal, so that what is shown is what was written.
        environment = {**os.environ, "TERM": "dumb", "COLUMNS": "80"}
        environment.pop("FORCE_COLOR", None)
        self.child = subprocess.Popen(
            [*PROGRAM, "chat", *options],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.shown = ""
        self.seen = 0

    def press(self, keys):
        os.write(self.master, keys.encode())

    def interrupt(self, part):
        """Presses Ctrl-C and waits for `part`; again where it came before input was waited for."""
        for _ in range(10):
            os.kill(self.child.pid, signal.SIGINT)
            if self.shows(part, seconds=3):
                return
        raise AssertionError(f"no {part!r} in {self.shown!r}")

    def wait_for(self, part):
        assert self.shows(part, seconds=30), f"no {part!r} in {self.shown!r}"

    def shows(self, part, seconds):
        """Whether `part` is shown in this time, behind what was waited for before."""
        deadline = time.monotonic() + seconds
        while part not in self.shown[self.seen :]:
            left = max(deadline - time.monotonic(), 0)
            if not select.select([self.master], [], [], left)[0]:
                return False
            try:
                data = os.read(self.master, 4096)
            except OSError:  # the program has gone
                data = b""
            assert data, f"ended: {self.shown!r}"
            self.shown += data.decode(errors="replace")
        self.seen = self.shown.index(part, self.seen) + len(part)
        return True

    def close(self):
        self.child.kill()
        self.child.wait()
        os.close(self.master)


def test_a_terminal_has_a_prompt_and_ctrl_c_never_ends_the_chat():
    terminal = Terminal()
    try:
        terminal.wait_for("smollm2-135m: /help lists the commands")
        terminal.wait_for("> ")
        terminal.interrupt("Ctrl-D or /exit ends the chat")
        terminal.wait_for("> ")
        terminal.press(" ".join(["end", *["pause"] * 100, "first"]) + "\r")
        terminal.wait_for("first pause pause")
        terminal.interrupt("; stopped")
        terminal.wait_for("> ")
        terminal.press("is sky blue\r")
        terminal.wait_for("blue sky is")
        terminal.wait_for("> ")
        terminal.press("\x04")
        assert terminal.child.wait(timeout=30) == 0
        assert "pause end" not in terminal.shown
    finally:
        terminal.close()
