"""NumPy, imported at its first use: programs of pipe commands start faster without it."""


def __getattr__(name):
    import numpy

    return getattr(numpy, name)
