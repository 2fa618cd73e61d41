"""`lookahead-jax chat`: a conversation, its answers streamed, the cache kept between turns."""

from __future__ import annotations

import contextlib
import itertools
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.filesize import decimal

from lookahead_jax.cli.console import has_colours, say, say_dimly, working, write_text
from lookahead_jax.cli.engine import Engine
from lookahead_jax.cli.reports import calls_part, count, cut_part
from lookahead_jax.cli.settings import Settings
from lookahead_jax.errors import LookaheadError

if TYPE_CHECKING:
    from lookahead_jax import Chat, LanguageModel
    from lookahead_jax.chat import TurnStats

HELP = """\
/stats  what the conversation has cost so far
/reset  forget the conversation, start anew
/help   these lines
/exit   end the chat (so does Ctrl-D)
Ctrl-C stops an answer and keeps what was written. A line that begins with a space is a message,
also where a / follows."""
ACCEPTED = "green"
_PROMPT = "> "
_HOW_TO_END = "Ctrl-D or /exit ends the chat"
_NOT_TEXT = "a message must be UTF-8 text; the line holds other bytes"


def run_chat(
    engine: Engine, settings: Settings, *, system: str | None, show_accepted: bool
) -> None:
    """Talks until the input ends. Without a terminal as stdin, its lines are the messages.

    Args:
        engine: What to call.
        settings: What decides the answers.
        system: System prompt, if any.
        show_accepted: Colour the text that came as a run of accepted tokens.

    Raises:
        LookaheadError: If there is no such model, or it cannot chat. What goes wrong in a turn is
            told in a line, and the chat goes on.
    """
    lm = settings.load(engine)
    chat = engine.chat(lm, config=settings.config, system=system, **settings.decoding_arguments())
    interactive = sys.stdin.isatty()
    if interactive:
        say_dimly(f"{lm.name}: /help lists the commands, {_HOW_TO_END}")
    if show_accepted:
        _print_legend()
    style = ACCEPTED if show_accepted else None
    while True:
        try:
            line = _ask() if interactive else _next_line()
            command = line.split()[0] if line and line.startswith("/") else None
            if line is None or command == "/exit":
                return
            if command is not None:
                _obey(command, chat, lm)
            elif line.strip():
                _answer(chat, line.strip(), settings, style)
        except LookaheadError as error:
            say("error: " + " ".join(str(error).split()))
        except KeyboardInterrupt:
            if not interactive:
                raise
            say("\n" + _HOW_TO_END)


def _print_legend() -> None:
    if has_colours():
        write_text("this colour", ACCEPTED)
        write_text(": several tokens that one model call gave\n")
    else:
        say("note: --show-accepted needs a terminal with colours as output; there is none")


def _ask() -> str | None:
    """A line from the terminal, with editing; None at its end."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401, input() then edits lines and remembers them
    to_terminal = sys.stdout.isatty()
    if not to_terminal:
        sys.stderr.write(_PROMPT)
        sys.stderr.flush()
    try:
        return _text(input(_PROMPT if to_terminal else "").encode(errors="surrogateescape"))
    except EOFError:
        say("")
        return None
    except UnicodeDecodeError:
        raise LookaheadError(_NOT_TEXT) from None


def _next_line() -> str | None:
    """A line of stdin that is no terminal; None at its end."""
    line = sys.stdin.buffer.readline()
    return _text(line).rstrip("\r\n") if line else None


def _text(line: bytes) -> str:
    try:
        return line.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise LookaheadError(_NOT_TEXT) from None


def _obey(command: str, chat: Chat, lm: LanguageModel) -> None:
    if command == "/help":
        say(HELP)
    elif command == "/reset":
        chat.reset()
        say("the conversation is forgotten")
    elif command == "/stats":
        say(stats_lines(chat.turns, lm))
    else:
        say(f"no command {command}: /help lists them")


def _answer(chat: Chat, message: str, settings: Settings, style: str | None) -> None:
    before = len(chat.turns)
    with _ctrl_c_noted() as interrupted:
        with working("reading; the first turns compile"):
            stream = chat.send(message)
            chunks = iter(stream)
            first = next(chunks, None)
        if first is not None:
            try:
                for chunk in itertools.chain([first], chunks):
                    write_text(chunk.text or "", style if chunk.accepted else None)
                    if interrupted:
                        stream.close()
                        break
            finally:
                write_text("\n")
        stopped = bool(interrupted)
    if len(chat.turns) > before:
        say_dimly(turn_line(chat.turns[-1], settings, stopped=stopped))
    elif stopped:
        say_dimly("stopped")


@contextlib.contextmanager
def _ctrl_c_noted() -> Iterator[Sequence[bool]]:
    """Turns Ctrl-C into a note that is looked at between model calls.

    An exception could come between a model call and the keeping of what it gave, and the
    conversation would be lost with it.
    """
    noted: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted  # signals never arrive here, and cannot be handled from here
        return
    before = signal.signal(signal.SIGINT, lambda *_: noted.append(True))
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def turn_line(turn: TurnStats, settings: Settings, *, stopped: bool) -> str:
    """What an answer cost, in one line."""
    end = "; stopped" if stopped else cut_part(turn.result, settings)
    return f"{calls_part(turn.result)}, {count(turn.read_tokens, 'token')} read{end}"


def stats_lines(turns: Sequence[TurnStats], lm: LanguageModel) -> str:
    """What a conversation has cost, and what it keeps."""
    if not turns:
        return "no turns yet"
    import jax.numpy as jnp

    tokens = sum(len(turn.result.tokens) for turn in turns)
    calls = sum(turn.result.stats.rounds for turn in turns)
    last = turns[-1]
    # The last token of a text is in no cache: it is what the next model call reads.
    cached = last.prompt_tokens + len(last.result.tokens) - 1
    spec = lm.cache_spec
    width = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * jnp.dtype(spec.dtype).itemsize
    reads = " + ".join(str(turn.read_tokens) for turn in turns)
    total = sum(turn.prompt_tokens for turn in turns)
    table = {
        "turns": str(len(turns)),
        "tokens": str(tokens),
        "model calls": f"{calls}, {tokens / max(calls, 1):.2f} tokens per call",
        "tokens read": f"{reads}; without the kept cache {total}",
        "n-gram pool": decimal(last.result.stats.pool_bytes),
        "cache": f"{cached} of {lm.max_length} tokens, {decimal(cached * width)}",
    }
    return "\n".join(f"{name:<12}  {value}" for name, value in table.items())
