"""Programs that turn lines of any text into the lines of a dataset: its ``pipe_command``.

This module needs no other part of the package: a dataset starts such a program for each file.
"""

import contextlib
import math
import numbers
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
            try:
                samples = []
                for number, line in enumerate(lines, 1):
                    for sample in self.generate_sample(line)():
                        if sample is None:
                            continue
                        samples.append(sample)
                        if len(samples) == self.batch_size_:
                            self._write(samples, out)
                            samples = []
                if samples:
                    self._write(samples, out)
            except Exception as error:
                # Python 3.11 and later print notes below the exception.
                if hasattr(error, "add_note"):
                    error.add_note(f"at line {number} of the input")
                raise
            out.flush()

    def _write(self, samples, out):
        for sample in self.generate_batch(samples)():
            out.write(self._gen_str(sample))

    def _gen_str(self, line):
        """Returns the line of a sample."""
        raise NotImplementedError(
            "a DataGenerator has no form of its lines\n  "
            "help: derive from MultiSlotDataGenerator or MultiSlotStringDataGenerator"
        )


def _sample(line):
    if isinstance(line, (zip, map, filter)):
        line = list(line)
    if not isinstance(line, (list, tuple)):
        raise ValueError(
            f"the output of process() must be in list or tuple type, got {type(line).__name__}\n  "
            f"Example: {_EXAMPLE}"
        )
    if not line:
        raise ValueError(f"a sample has no slots\n  Example: {_EXAMPLE}")
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
                "the complete field set of two given line are inconsistent: "
                f"require {len(slots)} fields, get {len(line)}"
            )
        made, words = [], []
        for index, item in enumerate(line):
            name, elements = _slot(item)
            if not isinstance(name, str):
                raise ValueError(f"name{type(name)} must be in str type")
            if not isinstance(elements, list):
                raise ValueError(f"elements{type(elements)} must be in list type: slot '{name}'")
            if not elements:
                raise ValueError(
                    "the elements of each field can not be empty, you need padding it in "
                    f"process(): slot '{name}'"
                )
            kind = "uint64" if slots is None else slots[index][1]
            if slots is not None and name != slots[index][0]:
                raise ValueError(
                    "the field name of two given line are not match: "
                    f"require<{slots[index][0]}>, get<{name}>."
                )
            words.append(str(len(elements)))
            for element in elements:
                if type(element) is float and math.isfinite(element):
                    kind = "float"
                elif type(element) is not int:
                    kind = _checked(name, element, kind)
            words.extend(map(str, elements))
            made.append((name, kind))
        self._proto_info = made
        return " ".join(words) + "\n"


def _checked(name, element, kind):
    """Returns the type of a slot with this element too."""
    if isinstance(element, bool):
        raise ValueError(
            f"the type of element{type(element)} must be in int or float: slot '{name}'"
        )
    if isinstance(element, numbers.Integral):
        return kind
    if not isinstance(element, numbers.Real):
        raise ValueError(
            f"the type of element{type(element)} must be in int or float: slot '{name}'"
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
