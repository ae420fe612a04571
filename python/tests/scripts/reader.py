"""Reads lines of a click log for wide_deep.py: document 002, lines 2968 to 3024."""

import zlib

import paddle
import paddle.distributed.fleet as fleet

assert paddle.distributed.fleet is fleet
NUMBERS, WORDS, HASH_DIM = range(1, 4), range(4, 8), 1001


class ClickReader(fleet.MultiSlotDataGenerator):
    """Dense numbers, hashed words, and the label."""

    def line_process(self, line):
        features = line.rstrip("\n").split("\t")
        dense = [float(features[index] or 0) / 20 for index in NUMBERS]
        words = [
            [zlib.crc32((str(index) + features[index]).encode()) % HASH_DIM] for index in WORDS
        ]
        return [dense, *words, [int(features[0])]]

    def generate_sample(self, line):
        def reader():
            names = ["dense_input"]
            for index in WORDS:
                names.append("C" + str(index - 3))
            names.append("label")
            yield zip(names, self.line_process(line))

        return reader


if __name__ == "__main__":
    clicks = ClickReader()
    clicks.set_batch(16)
    clicks.run_from_stdin()
