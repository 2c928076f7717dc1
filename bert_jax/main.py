"""`python -m bert_jax.main --mode=MODE ...`: reads the flags and hands over to the mode."""

import contextlib
import importlib
import math
import os
import re
import signal
import sys
import traceback
from typing import Any, TextIO

from absl import flags

from bert_jax import __version__, joining
from bert_jax.flag_uses import drop_unused
from bert_jax.flags import ALTERNATIVES, COMPUTING_MODES, MODES, TRAINING_MODES, define
from bert_jax.host_memory import keep_freed_memory
from input_pipeline.errors import UserError

EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED = 75

# After so long, what a callback has lost is raised again.
_MOMENT_SECONDS = 0.05

USAGE = """usage: python -m bert_jax.main --mode=MODE [flags] [--flagfile=FILE]

modes:
{modes}

With --mode=pretrain and no other flag a tiny BERT is pretrained on text that comes with Python.

exit codes: 0 done; 1 failed; 2 a mistake in a flag or file, named in one line; 75 stopped by SIGTERM or SIGINT, with
everything saved that pretrain or finetune had done: the same command continues; 130 prepare was stopped by Ctrl-C with
nothing written.

flags (booleans: --name or --noname):
"""


def parse(argv: list[str]) -> flags.FlagValues:
    """Reads the command line.

    Raises:
        UserError: an unknown flag, a bad value, or words that are no flags.
    """
    values = flags.FlagValues()
    define(values)
    flags.DEFINE_flag(
        flags.BooleanFlag("help", False, "show this help", short_name="h"), values, module_name="absl.flags"
    )
    flags.DEFINE_boolean("version", False, "show the version", values, module_name="absl.flags")
    try:
        rest = values(argv)
    except UnicodeDecodeError:
        named = " ".join(word for word in argv if word.lstrip("-").startswith("flagfile"))
        raise UserError(f"{named}: a file of flags must be text in UTF-8") from None
    except flags.Error as error:
        text = re.sub(r"\('(Non-boolean argument to boolean flag)', .*\)", r"\1", str(error))
        raise UserError(" ".join(text.replace("flag --", "--").replace("ERROR:: ", "").split())) from None
    if values.mode == "fill_mask" and (values.text or rest[1:]):
        values.text = [_as_utf8(text) for text in [*(values.text or []), *rest[1:]]]
    elif rest[1:]:
        raise UserError(f"unexpected {rest[1]!r}: every option is written --name=value")
    if {"--flagfile=", "-flagfile="} & set(argv):  # absl takes it for none
        raise UserError("--flagfile is empty: give a file, or leave the flag out")
    _leave_out_of_files(values, argv)
    for name in values:
        flag = values[name]
        if flag.present and flag.value in ("", [], [""]) and flag.value != flag.default:
            raise UserError(f"--{name} is empty: give a value, or leave the flag out")
        if isinstance(flag.value, float) and not math.isfinite(flag.value):
            raise UserError(f"--{name}={flag.value} must be a finite number")
    return values


def _leave_out_of_files(values: flags.FlagValues, argv: list[str]) -> None:
    """What stands on the command line counts, also where a --flagfile has the other of two that exclude each other."""
    own = {word.lstrip("-").partition("=")[0] for word in argv[1:] if word.startswith("-")}
    for pair in ALTERNATIVES:
        for given, other in (pair, pair[::-1]):
            if given in own and other not in own:
                values[other].unparse()


def _as_utf8(text: str) -> str:
    """A text from the command line; where the locale could not decode it, it is UTF-8."""
    if re.search("[\ud800-\udfff]", text):
        return os.fsencode(text).decode("utf-8", "replace")
    return text


def help_text(values: flags.FlagValues) -> str:
    modes = "\n".join(f"  {mode:<10}{text}" for mode, text in MODES.items())
    return USAGE.format(modes=modes) + values.module_help("bert_jax.flags").partition("\n")[2]


def main(argv: list[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    argv = sys.argv if argv is None else argv
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    _open_closed_streams()
    output = sys.stdout
    try:
        sys.stdout = _Output(output)
        code = _main(argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has seen enough
        _discard(output)
        return _leave(0)
    except UserError as error:
        _tell(f"error: {error}")
        return _leave(EXIT_USER_ERROR)
    except KeyboardInterrupt:
        # Steps have handlers of their own, which save; here nothing is lost that the same command does not make again.
        _tell("stopped; nothing that was written before is lost, and the same command does the rest")
        return _leave(EXIT_STOPPED)
    except Exception as error:
        lost = _lost_others(error)
        _tell(f"error: {lost}" if lost else traceback.format_exc().rstrip())
        return _leave(EXIT_FAILED)
    finally:
        sys.stdout = output
        for stream in (output, sys.stderr):
            _discard_what_cannot_be_written(stream)


def _main(argv: list[str]) -> int:
    values = parse(argv)
    if values.version:
        print(f"bert_jax {__version__}")
        return 0
    if values.help:
        print(help_text(values), flush=True)
        return 0
    if values.mode is None:
        raise UserError(f"--mode is missing: one of {', '.join(MODES)} (--help tells more)")
    is_first = joining.index(values) == 0
    for line in drop_unused(values):
        if is_first:
            _tell(f"warning: {line}")
    _check_needs(values)
    if values.mode in COMPUTING_MODES:
        keep_freed_memory()
        with _stopped_by_signals():
            return _run_mode(values)
    return _run_mode(values)


def _check_needs(values: flags.FlagValues) -> None:
    """Raises UserError where a flag is missing that the one who runs a file of flags has to add (--needs)."""
    for name in values.needs or []:
        if name not in values:
            raise UserError(f"--needs={','.join(values.needs)}: there is no flag {name}")
        if values.mode in TRAINING_MODES and not values[name].present:
            raise UserError(f"--{name} is missing, which the other flags need (--needs={','.join(values.needs)})")


def _run_mode(values: flags.FlagValues) -> int:
    mode = importlib.import_module(f"bert_jax.modes.{values.mode}")
    return mode.run(values) or 0


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _open_closed_streams() -> None:
    """Standard streams that the caller closed become ones that cannot be used; nobody reads what goes to stderr then.

    Without this the next file that is opened gets their number, and what a library prints.
    """
    for number, (name, can) in enumerate((("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, can), number)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


class _Output:
    """Standard output, of which it is no failure of this program that it is full or closed."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with _user_errors_of_output():
            return self._stream.write(text)

    def flush(self) -> None:
        with _user_errors_of_output():
            self._stream.flush()


@contextlib.contextmanager
def _user_errors_of_output():
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserError(f"standard output: {error.strerror}") from None


def _discard_what_cannot_be_written(stream: TextIO) -> None:
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Lets go of what is still to be written, which the interpreter would try at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


# Only modes that compute on devices can have other processes.
def _lost_others(error: Exception) -> str | None:
    devices = sys.modules.get("bert_jax.devices")
    return devices.lost_others(error) if devices else None


def _leave(code: int) -> int:
    devices = sys.modules.get("bert_jax.devices")
    return devices.leave(code) if devices else code


@contextlib.contextmanager
def _stopped_by_signals():
    """SIGTERM raises KeyboardInterrupt as SIGINT does, and is not lost where libraries make something else of that.

    What is raised in a callback (JAX has one for the garbage collector) Python reports, and goes on: it is raised again
    a moment later. What is raised while an extension is imported comes out as its ImportError.
    """
    received = False

    def stop(number, frame):
        nonlocal received
        received = True
        raise KeyboardInterrupt

    def raise_again(unraisable):
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, _MOMENT_SECONDS)
        else:
            report(unraisable)

    caught = [signal.SIGTERM, signal.SIGALRM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as shells do for `... &`
        caught.append(signal.SIGINT)
    previous = {number: signal.signal(number, stop) for number in caught}
    report, sys.unraisablehook = sys.unraisablehook, raise_again
    try:
        yield
    except Exception:
        if received:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        for number, handler in previous.items():
            if signal.getsignal(number) is stop:  # a run that stops ignores further ones
                signal.signal(number, handler)


def _end(code: int) -> None:
    """Ends the process, which takes a second after work that is done.

    What was stopped or failed may have threads inside of a compiler or of TensorFlow, which crash when the interpreter
    tears their libraries down. And a KeyboardInterrupt that has passed through exec makes it end by SIGINT, whatever
    the code.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if code:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _end(main())
