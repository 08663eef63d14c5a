"""The settings that this package reads from the environment. plugin/settings declares the settings of all components."""
import difflib
import functools
import os
import warnings
from collections.abc import Iterable, Mapping

from verbena.setting_table import OTHERS, PREFIXES, SETTINGS


def read(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the value of a setting. If the variable `name` is not set, returns the value of the first alias that is set, or the
    default."""
    aliases, default, _ = SETTINGS[name]
    return next((environment[one].strip() for one in (name, *aliases) if environment.get(one, "").strip()), default)


def read_flag(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    return read(name, environment).lower() in ("1", "true", "yes", "on")


def read_choice(name: str, environment: Mapping[str, str] = os.environ) -> str:
    """Returns the value of a setting that accepts only certain words. If the environment has another value, logs a warning and returns the
    default."""
    _, default, words = SETTINGS[name]
    value = read(name, environment)
    found = next((word for word in words if word.lower() == value.lower()), None)
    if found is None:
        warnings.warn(f"verbena: {name}={value} is not one of {', '.join(words)}. The default, {default}, is used instead", stacklevel=3)
    return default if found is None else found


def find_unknown_names(environment: Iterable[str]) -> dict[str, str]:
    """Finds environment variables that have the prefix of a setting but that no component of Verbena reads. Returns a dictionary from the
    name of each such variable to the most similar name of a setting."""
    known = {*OTHERS, *SETTINGS}
    return {name: difflib.get_close_matches(name, known, n=1, cutoff=0)[0]
            for name in environment if name.startswith(PREFIXES) and name not in known}


@functools.cache
def warn_about_unknown_names() -> None:
    """Logs a warning about settings with misspelt names, once in a process."""
    for name, nearest in find_unknown_names(os.environ).items():
        warnings.warn(f"verbena: {name} is unknown and is ignored; did you mean {nearest}?", stacklevel=3)
