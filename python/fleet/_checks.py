"""Checks of arguments that many calls have."""

import operator
import os


def integer(name, value, least, most=2**31 - 1):
    """Returns an integer argument, or raises an error that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name}: expected an integer, got {value!r}")
    if not least <= number <= most:
        end = f"{least} or more" if most == 2**31 - 1 and number < least else f"{least} to {most}"
        got = str(number) if abs(number) < 2**64 else f"a number of {number.bit_length()} bits"
        raise ValueError(f"{name}: expected {end}, got {got}")
    return number


def seed(name, value):
    """Returns the seed of random numbers."""
    return integer(name, value, 0, 2**64 - 1)


def path(name, value):
    """Returns the name of a file or folder."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise TypeError(f"{name}: expected the name of a file or folder, got {value!r}")
    if not os.fspath(value):
        raise ValueError(f"{name}: expected the name of a file or folder, got ''")
    return os.fspath(value)
