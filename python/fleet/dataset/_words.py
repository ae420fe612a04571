"""Words for data sets of texts."""

#: The number of words, besides `<unk>`. Public vocabularies have more; ids stay below this.
WORDS = 2000


def dictionary():
    """Returns the numbers of all words; the last one is that of unknown words."""
    words = {f"word{index}": index for index in range(WORDS)}
    words["<unk>"] = WORDS
    return words
