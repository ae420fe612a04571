"""The code listings of the documents, which are not part of the repository.

A listing is known by its document and its first line. `listings()` returns them with wrapped lines
joined, and with the typing errors of the documents mended: `MENDS` names each.
"""

import ast
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
        return textwrap.dedent("\n".join(text for _, text in self.lines)) + "\n"


def listings(document, mends=()):
    """Returns the listings of a document by key."""
    text = (folder() / f"{document}.txt").read_text(encoding="utf-8")
    lines = list(enumerate(text.split("\n"), start=1))
    blocks = {"002": _fenced, "003": _numbered}.get(document, _indented)
    found = {}
    for block in blocks(lines):
        listing = Listing(document, _joined(block))
        found[listing.key] = listing
    for mend in mends:
        mend.apply(found)
    return found


def _fenced(lines):
    """Blocks between lines of three backquotes."""
    block = None
    for number, text in lines:
        if re.match(r"\s*(- )?```", text):
            if block:
                yield _trimmed(block)
            block = [] if block is None else None
        elif block is not None:
            block.append((number, text))


def _trimmed(block):
    while block and not block[0][1].strip():
        block = block[1:]
    while block and not block[-1][1].strip():
        block = block[:-1]
    return block or [(0, "")]


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
