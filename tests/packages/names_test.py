"""Checks that the paths, links and names in the documents for contributors exist, and that all versions are equal.

usage: names_test.py BUILD [TEST...]
"""
import re
import sys
import unittest

import stage

PAGES = ["docs/code-map.md", "CONTRIBUTING.md", "CHANGELOG.md", ".github/ISSUE_TEMPLATE/bug.md", "packaging/README.md"]
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
# A path begins with a folder of the project's.
FOLDERS = {path.name for path in stage.PROJECT.iterdir() if path.is_dir() and path.name != "build"}


def is_path(text):
    return re.fullmatch(r"[\w./-]+", text) and ("/" in text and text.removeprefix("./").split("/")[0] in FOLDERS)


class NamesTest(unittest.TestCase):
    def test_paths_and_links(self):
        for page in PAGES:
            text = (stage.PROJECT / page).read_text()
            paths = [found.removeprefix("./") for found in CODE.findall(text) if is_path(found)]
            paths += [command.split()[0].removeprefix("./") for command in re.findall(r"^    (\./tools.*)$", text, re.M)]
            for path in paths:
                self.assertTrue((stage.PROJECT / path).exists(), f"{page} names {path}")
            for link in LINK.findall(text):
                if not link.startswith(("http:", "https:")):
                    self.assertTrue(((stage.PROJECT / page).parent / link).exists(), f"{page} links {link}")

    def test_names_stand_in_the_file_beside_them(self):
        rows, wrong = 0, []
        for line in (stage.PROJECT / "docs/code-map.md").read_text().splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if not line.startswith("|") or len(cells) != 3 or not CODE.fullmatch(cells[1]):
                continue
            file = stage.PROJECT / cells[1].strip("`")
            if not file.is_file() or file.suffix not in (".cc", ".h", ".cuh"):
                continue
            names = [name for name in CODE.findall(cells[2]) if not is_path(name)]
            rows += len(names)
            wrong += [f"{cells[1]} has no {name}" for name in names
                      if not re.search(rf"\b{re.escape(name)}\b", file.read_text())]
        self.assertEqual(wrong, [])
        self.assertGreater(rows, 30)

    def test_the_glossary_names_code(self):
        sources = [path for folder in ("plugin", "include", "device") for path in (stage.PROJECT / folder).rglob("*.*")
                   if path.suffix in (".cc", ".h", ".cuh", ".hpp")]
        words = {path.name for path in sources}
        for path in sources:
            words.update(re.findall(r"[\w-]+", path.read_text()))
        rows = [line.strip("|").split("|") for line in (stage.PROJECT / "docs/words.md").read_text().splitlines() if line.startswith("|")]
        names = [name for cells in rows if len(cells) == 4 for name in CODE.findall(cells[3])]
        self.assertEqual([name for name in names if not (stage.PROJECT / name).exists() and name.split("::")[-1] not in words], [])
        self.assertGreater(len(names), 40)

    # Whoever takes over an action's repository can move its tags.
    def test_actions_are_named_by_commit(self):
        used = [line for path in sorted((stage.PROJECT / ".github/workflows").iterdir())
                for line in path.read_text().splitlines() if "uses:" in line]
        self.assertGreater(len(used), 3)
        self.assertEqual([line for line in used if not re.search(r"uses: [\w/-]+@[0-9a-f]{40} # v[0-9.]+$", line)], [])

    def test_one_version(self):
        version = re.search(r"project\(verbena VERSION ([0-9.]+)", (stage.PROJECT / "CMakeLists.txt").read_text())[1]
        for package in ("python/pyproject.toml", "pyproject.toml"):
            self.assertIn(f'version = "{version}"', (stage.PROJECT / package).read_text(), package)
        changes = (stage.PROJECT / "CHANGELOG.md").read_text()
        self.assertTrue(f"## {version}" in changes or f"To be {version}" in changes, "CHANGELOG.md has another version")


if __name__ == "__main__":
    sys.argv.pop(1)
    unittest.main()
