"""Programs that turn lines of any text into the lines of a dataset: its ``pipe_command``.

This module needs no other part of the package: a dataset starts such a program for each file.
"""

import contextlib
import math
import numbers
import os
import sys

_EXAMPLE = "[('words', [1926, 8, 17]), ('label', [1])]"


class DataGenerator:
    """Makes samples from lines. Subclasses define `generate_sample`, and may define
    `generate_batch`."""

    def __init__(self):
        self._proto_info = None
        self.batch_size_ = 32

    def set_batch(self, batch_size):
        """Sets how many samples `generate_batch` gets at once."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size: expected 1 or more, got {batch_size!r}")
        self.batch_size_ = batch_size

    def generate_sample(self, line):
        """Returns a function that iterates over the samples of one line: lists or zips of names and
        values. ``line`` ends with its newline; it is None in `run_from_memory`. A sample None is
        skipped."""
        raise NotImplementedError(
            f"{type(self).__name__} does not define generate_sample\n  "
            f"help: return a function that yields samples such as {_EXAMPLE}"
        )

    def generate_batch(self, samples):
        """Returns a function that iterates over the samples of a batch, for example padded to one
        length. By default they stay as they are."""

        def local_iter():
            yield from samples

        return local_iter

    def run_from_stdin(self):
        """Reads lines from the standard input and writes samples to the standard output."""
        self._run(sys.stdin)

    def run_from_memory(self):
        """Writes the samples of ``generate_sample(None)`` to the standard output."""
        self._run([None])

    def _run(self, lines):
        out = sys.stdout
        number = 0
        # What the script prints must not come between the samples.
        with contextlib.redirect_stdout(sys.stderr):
            samples, numbers = [], []
            for number, line in enumerate(lines, 1):
                with _noted(number):
                    for sample in self.generate_sample(line)():
                        if sample is None:
                            continue
                        samples.append(sample)
                        numbers.append(number)
                        if len(samples) == self.batch_size_:
                            self._write(samples, numbers, out)
                            samples, numbers = [], []
            if samples:
                self._write(samples, numbers, out)
            out.flush()

    def _write(self, samples, numbers, out):
        """Writes a batch; ``numbers`` has the line of each sample."""
        written, whole = 0, (numbers[0], numbers[-1])
        with _noted(*whole):
            made = self.generate_batch(list(samples))()
            for sample in made:
                # A batch may have other samples, or more, than it was made of.
                same = written < len(samples) and sample is samples[written]
                with _noted(*([numbers[written]] if same else whole)):
                    out.write(self._gen_str(sample))
                written += 1

    def _gen_str(self, line):
        """Returns the line of a sample."""
        raise NotImplementedError(
            "a DataGenerator has no form of its lines\n  "
            "help: derive from MultiSlotDataGenerator or MultiSlotStringDataGenerator"
        )


@contextlib.contextmanager
def _noted(first, last=None):
    """Adds the lines of the input to an exception, unless it has them."""
    try:
        yield
    except Exception as error:
        # Python 3.11 and later print notes below the exception.
        if hasattr(error, "add_note") and not getattr(error, "__notes__", None):
            place = f"line {first}" if last in (None, first) else f"lines {first} to {last}"
            error.add_note(f"at {place} of the input")
        raise


def _check_order(names):
    """Refuses samples whose names are those of inputs in another order. A dataset passes the names
    of its inputs."""
    inputs = os.environ.get("FLEET_SLOTS")
    inputs = inputs.split("\n") if inputs else []
    places = {name: place for place, name in enumerate(inputs)}
    if any(places.get(name, place) != place for place, name in enumerate(names)):
        raise ValueError(
            "the slots of a sample are in another order than the inputs of the dataset: "
            f"expected {', '.join(inputs)}, got {', '.join(names)}\n  "
            "help: yield the slots in the order of use_var"
        )


def _sample(line):
    if isinstance(line, (zip, map, filter)):
        line = list(line)
    if not isinstance(line, (list, tuple)):
        raise ValueError(
            f"a sample must be in list or tuple type, got {type(line).__name__}\n  "
            f"help: yield a sample such as {_EXAMPLE}"
        )
    if not line:
        raise ValueError(f"a sample has no slots\n  help: yield a sample such as {_EXAMPLE}")
    return line


def _slot(item):
    if not isinstance(item, (list, tuple)) or len(item) != 2:
        raise ValueError(f"a slot must be a name and its values, got {item!r}")
    return item


class MultiSlotDataGenerator(DataGenerator):
    """Writes samples of numbers. The first sample fixes the slots.

    ::

        class Reader(fleet.MultiSlotDataGenerator):
            def generate_sample(self, line):
                def samples():
                    words = [int(word) for word in line.split()]
                    yield [("words", words[1:]), ("label", words[:1])]

                return samples

        Reader().run_from_stdin()
    """

    def _gen_str(self, line):
        line = _sample(line)
        slots = self._proto_info
        if slots is not None and len(line) != len(slots):
            raise ValueError(
                "a sample has another number of slots than the first one: "
                f"expected {len(slots)}, got {len(line)}"
            )
        made, words = [], []
        for index, item in enumerate(line):
            name, elements = _slot(item)
            if not isinstance(name, str):
                raise ValueError(f"the name of a slot must be a string, got {name!r}")
            if not isinstance(elements, list):
                kind = type(elements).__name__
                raise ValueError(f"the values of slot '{name}' must be a list, got {kind}")
            if not elements:
                raise ValueError(
                    f"slot '{name}' has no values\n  "
                    "help: yield a padding value for it in generate_sample"
                )
            kind = "uint64" if slots is None else slots[index][1]
            if slots is not None and name != slots[index][0]:
                raise ValueError(
                    "a sample has another slot than the first one: "
                    f"expected '{slots[index][0]}', got '{name}'"
                )
            words.append(str(len(elements)))
            for element in elements:
                if type(element) is float and math.isfinite(element):
                    kind = "float"
                elif type(element) is not int:
                    kind = _checked(name, element, kind)
            words.extend(map(str, elements))
            made.append((name, kind))
        if slots is None:
            _check_order([name for name, _ in made])
        self._proto_info = made
        return " ".join(words) + "\n"


def _checked(name, element, kind):
    """Returns the type of a slot with this element too."""
    if isinstance(element, numbers.Integral) and not isinstance(element, bool):
        return kind
    if isinstance(element, bool) or not isinstance(element, numbers.Real):
        raise ValueError(
            f"the values of slot '{name}' must be integers or floats, got {element!r}"
        )
    if not math.isfinite(element):
        raise ValueError(f"slot '{name}' has a number that is not finite: {element}")
    return "float"


class MultiSlotStringDataGenerator(DataGenerator):
    """Writes samples whose values are strings, as they are."""

    def _gen_str(self, line):
        words = []
        for item in _sample(line):
            _, elements = _slot(item)
            words.append(str(len(elements)))
            words.extend(elements)
        try:
            return " ".join(words) + "\n"
        except TypeError:
            raise ValueError(f"the values must be strings, got {line!r}") from None
