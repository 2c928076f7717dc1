"""How flags are defined: one call each, all keyed to one module, so that --help lists exactly these."""

from collections.abc import Sequence

from absl import flags


class FlagDefiner:
    """Defines flags on `values` as flags of `module`."""

    def __init__(self, values: flags.FlagValues, module: str):
        self._on = {"flag_values": values, "module_name": module}

    def string(self, name: str, default: str | None, text: str) -> None:
        flags.DEFINE_string(name, default, text, **self._on)

    def comma_list(self, name: str, default: list[str] | None, text: str) -> None:
        flags.DEFINE_list(name, default, text, **self._on)

    def boolean(self, name: str, default: bool | None, text: str) -> None:
        flags.DEFINE_boolean(name, default, text, **self._on)

    def enum(self, name: str, default: str | None, choices: Sequence[str], text: str) -> None:
        flags.DEFINE_enum(name, default, choices, text, **self._on)

    def integer(self, name: str, default: int | None, text: str, low: int | None = None, high: int = 10**9) -> None:
        flags.DEFINE_integer(name, default, text, low, high, **self._on)

    def number(
        self, name: str, default: float | None, text: str, low: float | None = None, high: float | None = None
    ) -> None:
        flags.DEFINE_float(name, default, text, low, high, **self._on)
