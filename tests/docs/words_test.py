"""Public text has the field's words: headers, Python, tools with their help, documents, error lines. docs/words.md explains those that
are ours on purpose."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What a reader of the field does not say, and what he does.
WORDS = {
    r"few bits": "quantised",
    r"behind each other|one behind the other": "contiguous, concatenated",
    r"side by side": "contiguous, adjacent",
    r"by chance": "stochastic, random",
    r"in vain": "timed out; spurious (retransmit)",
    r"good again|good as new": "reset, recovered",
    r"(what|which) cannot be\b(?! [a-z]+ed)": "invalid arguments",
    r"\bso many\b": "the number, or its name",
    r"\bfarewell|\bwelcome\b": "close, answer to the handshake",
    r"\bwish(es)?\b": "request to send",
    r"\b(ended|ends?|over) by time\b": "timed out",
    r"\b(did|does) not come\b(?! (up|from))": "is late, is missing",
    r"\bof no member\b": "on ranks that are not members",
    r"\bcut towards\b|\bcut to (its|`?length)": "truncated",
    r"\bwhoever\b": "name the actor",
    r"\bwraps round\b": "wraps on overflow",
    r"\bwitness": "liveness observer",
    r"\bstrangers?\b": "unauthenticated peer",
    r"short page": "small-message buffer",
    r"\banew\b": "again",
    r"\bin figures\b(?!:)": "numeric",
    r"\bno place for\b|\bis in no window\b|\bat no multiple of\b": "is NULL; is outside every window; is not aligned",
    r"\bequally many\b": "the same number of",
    r"\b(is|are|was|were|be) told\b|\btells? of\b|\bhears? of\b": "is notified, is reported; reports",
    r"\bone's own\b|\bof none\b": "your own; without",
    r"\bfor good\b": "permanently, forever",
    r"\b(come|comes|came) to (lie|stand)\b": "is stored",
    r"\w*(lets_next_start|_by_chance|_behind_all|_coded_?twice)\b|all_reduce_coded|choose_coded": "programmatic_launch, stochastic, after_puts, quantised",
    r"\b(output|residual_in|residual_out|quantised|scale_row|scale_block|x)_step\b": "stride",
    r"\b(least|most)_(bytes|scale|sizes|rows|tiles|used|ranks|us)\b|(?-i:\b(LEAST|MOST)_)": "min, max",
}
# In strings of the transports these are the names of counters.
OF_SURFACES = {
    r"\bbehind\b(?! (one|the same|PCI) .*switch|[^.]*\blibibverbs\b)": "after, followed by; below",
    r"\bunder way\b": "in flight, in progress",
    r"\bof (its|their|his) own(?=[.,;:)|]|$| (that|which|return|and|or|in|for)\b)": "separate, dedicated",
    r"\b(numbers of (a|the) (row|tensor)|\d+ numbers|numbers that share)\b": "elements",
}
SURFACES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "include/**/*", "python/README.md", "python/verbena/**/*.py",
            "tools/**/*"]
# Of these only what the product says.
SOURCES = ["plugin/**/*.cc", "plugin/**/*.h", "device/**/*.cc", "device/**/*.h"]
STRING = re.compile(r'"(?:[^"\\]|\\.)* (?:[^"\\]|\\.)*"')
CODE = re.compile(r"`[^`]*`")  # names of tests and messages of other programs
LEFT_OUT = {"docs/words.md"}  # it has both words
# Two pictures do stand side by side; the fuzz targets have their messages' names.
ON_THE_WIRE = {'"verbena bootstrap welcome"', '"softverbs welcome"', '"verbena welcome, receiver to sender"'}  # MACs are made with them
DRAWINGS = {"tools/report/readme_plots.py", "tools/report/stored_results.py", "tools/fuzz"}


def list_texts() -> list[tuple[str, str, dict[str, str]]]:
    """Places, lines, and the words that they must not have."""
    texts = []
    for patterns in (SURFACES, SOURCES):
        for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"}):
            name = str(path.relative_to(ROOT))
            if name in LEFT_OUT | DRAWINGS:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
                said = line if patterns is SURFACES else " ".join(text for text in STRING.findall(line) if text not in ON_THE_WIRE)
                texts.append((f"{name}:{number}", CODE.sub("", said) if name.endswith(".md") else said,
                              WORDS | OF_SURFACES if patterns is SURFACES else WORDS))
    return texts


class WordsTest(unittest.TestCase):
    def test_public_text_has_the_fields_words(self) -> None:
        texts = list_texts()
        self.assertGreater(len(texts), 50_000)
        for place, line, words in texts:
            if found := re.search("|".join(words), line, re.IGNORECASE):
                with self.subTest(place):
                    self.fail(f"{line.strip()!r}: write {next(better for word, better in words.items() if re.search(word, found[0], re.I))}")


if __name__ == "__main__":
    unittest.main()
