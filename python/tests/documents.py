"""The code listings of the documents, which are not part of the repository.

A listing is known by its document and its first line. `listings()` returns them with wrapped lines
joined, and with the typing errors of the documents mended: `MENDS` names each.
"""

import os
import pathlib
import re
import textwrap

#: The variable that says where the documents are.
VARIABLE = "FLEET_DOCUMENTS"


def folder():
    """Returns the folder of the documents, or None if they are not on this machine."""
    root = pathlib.Path(__file__).parents[2]
    given = os.environ.get(VARIABLE)
    path = pathlib.Path(given) if given else root.parent / "shared" / "documents"
    return path if (path / "002.txt").exists() else None


class Listing:
    """A block of code: `lines` are pairs of a line number and a text."""

    def __init__(self, document, lines):
        self.document = document
        self.lines = lines

    @property
    def key(self):
        return f"{self.document}:{self.lines[0][0]}"

    @property
    def text(self):
        return "\n".join(text for _, text in self.lines) + "\n"


class Mend:
    """A typing error of a document: in a line, `old` becomes `new`.

    A `new` that ends in a backslash joins the next line to it, whose indentation is dropped.
    ``until`` applies it to more lines.
    """

    def __init__(self, place, old, new, why, until=None):
        self.document, line = place.split(":")
        self.lines = range(int(line), (until or int(line)) + 1)
        self.old, self.new, self.why = old, new, why

    def apply(self, lines):
        """Changes the lines of a listing, which are pairs of a number and a text."""
        for index, (number, text) in enumerate(lines):
            if number not in self.lines:
                continue
            assert self.old in text, f"{self.document}:{number}: '{self.old}' is not in '{text}'"
            text = text.replace(self.old, self.new, 1)
            if text.endswith("\\"):
                text = text[:-1] + lines.pop(index + 1)[1].lstrip()
            lines[index] = (number, text)


#: The typing errors, by document and line.
MENDS = [
    Mend("001:78", "exe_st.", "exec_strategy.", "another name of the variable"),
    Mend("001:82", "             ...", "", "an ellipsis for code that is left out"),
    Mend("001:88", "             ...", "", "an ellipsis for code that is left out"),
    Mend("002:558", "", "    ", "the indentation is lost at the break of the page", until=578),
    Mend("002:1450", "in_checkpoint_idx", "in checkpoint_idx", "a blank is printed as underscore"),
    Mend("002:1464", "", "    ", "the indentation is lost at the break of the page", until=1465),
    Mend("002:2066", "", "        ", "the indentation is lost at the break of the page"),
    Mend("002:2067", "", "    ", "the indentation is lost at the break of the page", until=2068),
    Mend("002:2089", "strategy.", "dist_strategy.", "another name of the variable"),
    Mend("002:2973", "0, 0, 0]", "0, 0, 0, 0]", "13 columns have 13 minima"),
    Mend("002:3012", "", "    ", "the indentation is lost at the break of the page", until=3016),
    Mend("002:3013", "range:", "range_:", "another name of the variable"),
    Mend("002:3018", "", "    ", "the indentation is lost at the break of the page"),
    Mend("002:3086", "[config.", "[config.\\", "a line that is wrapped"),
    Mend("002:3086", '["train_files_path"]', '["train_files_path"]]', "a bracket is missing"),
    Mend("002:3198", "", "    ", "the indentation is lost at the break of the page", until=3199),
    Mend("002:3288", "dirname=path", "dirname=dirname", "another name of the variable"),
    Mend("002:3341", "    ", "", "the loop around it is missing", until=3343),
    Mend("002:3389", 'name="total_', 'name="total_\\', "a line that is wrapped"),
    Mend("002:3395", "fill_", "fill_\\", "a line that is wrapped"),
    Mend("002:3411", "/ float(global_", "/ float(global_\\", "a line that is wrapped"),
    Mend("002:3495", "fill_", "fill_\\", "a line that is wrapped"),
    Mend("002:3621", "paddle.metrics", "fleet.metrics", "the module of the function above"),
    Mend("002:3738", "paddle.default", "paddle.static.default", "the module is static"),
    Mend(
        "002:3752", "dist_infer =", "\n    dist_infer =", "a line is printed as the rest of another"
    ),
    Mend("002:3771", "            except", "    except", "the indentation", until=3771),
    Mend("002:3772", "        reader", "    reader", "the indentation"),
    Mend("002:3800", "batch_", "batch_\\", "a line that is wrapped"),
    Mend("002:3811", '\\n".', '\\n".\\', "a line that is wrapped"),
    Mend("002:3814", "            except", "    except", "the indentation"),
    Mend("002:3815", "        reader", "    reader", "the indentation"),
    Mend("003:195", "", "", "the line that begins the dictionary is missing"),
    Mend("003:196", "", "strategy.localsgd_configs = {", "the beginning of the line is missing"),
]


def listings(document):
    """Returns the listings of a document by key."""
    text = (folder() / f"{document}.txt").read_text(encoding="utf-8")
    lines = list(enumerate(text.split("\n"), start=1))
    blocks = {"002": _fenced, "003": _numbered}.get(document, _indented)
    found = {}
    for block in blocks(lines):
        listing = Listing(document, _joined(block))
        for mend in MENDS:
            if mend.document == document:
                mend.apply(listing.lines)
        found[listing.key] = listing
    return found


def _fenced(lines):
    """Blocks between lines of three backquotes."""
    block = None
    for number, text in lines:
        if re.match(r"\s*(- )?```", text):
            if block:
                yield _without_blanks(block)
            block = [] if block is None else None
        elif block is not None:
            block.append((number, text))


def _without_blanks(block):
    """Returns the block without blank lines at its ends."""
    while block and not block[0][1].strip():
        block = block[1:]
    while block and not block[-1][1].strip():
        block = block[:-1]
    return block or [(0, "")]


def _trimmed(block):
    """Returns the block also without the margin of all lines."""
    block = _without_blanks(block)
    text = textwrap.dedent("\n".join(text for _, text in block))
    return list(zip([number for number, _ in block], text.split("\n")))


def _indented(lines):
    """Blocks that are indented below `.. code:: python`."""
    block = None
    for number, text in lines:
        if re.match(r"\s*\.\. code(-block)?:: python", text):
            block, margin = [], len(text) - len(text.lstrip())
        elif block is not None:
            if text.strip() and len(text) - len(text.lstrip()) <= margin:
                yield _trimmed(block)
                block = None
            elif not re.match(r"\s*:\w+:\s*$", text):
                block.append((number, text))
    if block:
        yield _trimmed(block)


def _numbered(lines):
    """Lines that begin with their number, from 1 on. Indentation is lost."""
    block = []
    for number, text in lines:
        found = re.match(r"\s+(\d+)\. (.*)", text)
        if not found:
            continue
        if found[1] == "1" and block:
            yield block
            block = []
        block.append((number, found[2]))
    if block:
        yield block


def _joined(block):
    """Joins lines that were wrapped for the page: the rest begins with an arrow. A blank at the end
    of a wrapped line is printed as an underscore."""
    made = []
    for number, text in block:
        rest = re.match(r"\s*[→↪↳]\s*(.*)", text)
        if rest and made:
            before = re.sub(r" _$", " ", made[-1][1])
            made[-1] = (made[-1][0], before + rest[1])
        else:
            made.append((number, text))
    return made


def is_python(listing):
    """Returns whether a listing of document 002 is code of Python: it uses the modules."""
    words = r"\bpaddle\.|\bfleet\.|\bfluid\.|strategy\.|dataset\.|import |X\.applications"
    text = listing.text
    shown = r"device_context|Distributed Envs|Configuration Arguments|apiVersion|\$ kube|^fleetrn"
    shown += r"|^fleetrun|^pip |^python -m|^\s*[+|]|downpour"
    return bool(re.search(words, text)) and not re.search(shown, text, re.MULTILINE)
