"""Public text has the field's words: headers, Python, tools, documents. docs/words.md explains those that are ours on purpose."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What a reader of the field does not say, and what he does.
WORDS = {
    r"few bits": "quantised",
    r"behind each other": "contiguous, concatenated",
    r"side by side": "contiguous, adjacent",
    r"by chance": "stochastic, random",
    r"in vain": "timed out; spurious (retransmit)",
    r"good again": "reset, recovered",
    r"what cannot be": "invalid arguments",
}
SURFACES = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/*.md", "include/**/*", "python/README.md", "python/verbena/**/*.py",
            "tools/**/*"]
LEFT_OUT = {"docs/words.md"}  # it has both words
DRAWINGS = {"tools/report/readme_plots.py", "tools/report/stored_results.py"}  # two pictures do stand side by side


class WordsTest(unittest.TestCase):
    def test_public_text_has_the_fields_words(self) -> None:
        files = {path for pattern in SURFACES for path in ROOT.glob(pattern) if path.is_file() and path.suffix != ".pyc"}
        self.assertGreater(len(files), 100)
        for path in sorted(files):
            name = str(path.relative_to(ROOT))
            if name in LEFT_OUT | DRAWINGS:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="ignore").splitlines(), 1):
                if found := re.search("|".join(WORDS), line, re.IGNORECASE):
                    with self.subTest(f"{name}:{number}"):
                        self.fail(f"{line.strip()!r}: write {next(better for word, better in WORDS.items() if re.search(word, found[0], re.I))}")


if __name__ == "__main__":
    unittest.main()
