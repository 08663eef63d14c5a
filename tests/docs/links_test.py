"""Links of the documents lead somewhere: to a file of the repository, and to a heading that it has. Rows of tables are whole."""

import re
import unittest
from pathlib import Path

import commands

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
# Of the repository, between backticks: `docs/tuning.md`, `tools/test`.
NAMED = re.compile(r"`(?:\./)?((?:docs|tools|tests|plugin|device|include|python|examples|packaging)/[\w./-]+)`")


def list_documents() -> list[Path]:
    folders = [ROOT / "plugin", ROOT / "device"]
    return commands.list_documents(ROOT) + sorted(path for folder in folders for path in folder.rglob("*.md"))


def list_anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ +(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


class LinksTest(unittest.TestCase):
    def test_links(self) -> None:
        for path in list_documents():
            text = path.read_text(encoding="utf-8")
            for target in LINK.findall(text):
                if re.match(r"^[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                file = (path.parent / name).resolve() if name else path
                with self.subTest(path.relative_to(ROOT), link=target):
                    self.assertTrue(file.exists(), "leads nowhere")
                    if anchor:
                        self.assertIn(anchor, list_anchors(file))

    def test_named_files(self) -> None:
        for path in commands.list_documents(ROOT):
            for name in NAMED.findall(path.read_text(encoding="utf-8")):
                with self.subTest(path.relative_to(ROOT), name=name):
                    # A README names a file without its ending, and what is built beside it.
                    stems = [folder / name.rstrip("/.") for folder in (ROOT, path.parent)]
                    found = any(stem.exists() or list(stem.parent.glob(stem.name + ".*")) for stem in stems)
                    self.assertTrue(found, "is not there")

    def test_tables(self) -> None:
        """Each row has as many cells as the heading of its table. A row that belongs to another table usually has not."""
        for path in list_documents():
            bars = 0  # of the table's heading; 0 outside of tables
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
                if bars == 0 or found == 0:
                    bars = found
                    continue
                with self.subTest(path.relative_to(ROOT), line=number):
                    self.assertEqual(found, bars, line)


if __name__ == "__main__":
    unittest.main()
