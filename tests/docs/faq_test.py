"""Messages that the FAQ explains are messages that the product writes."""

import re
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
# What stands between two literals of one text, and what a format leaves open.
JOIN = re.compile(r'"\s*\n\s*"')
OPEN = re.compile(r"%[-+ #0-9.*]*(?:hh|h|ll|l|z)?[a-zA-Z]|\{\}")


def list_messages() -> list[str]:
    texts = []
    for folder in ("plugin", "device"):
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in (".cc", ".h", ".cu"):
                texts += LITERAL.findall(JOIN.sub("", path.read_text(encoding="utf-8")))
    return [text for text in texts if len(text) > 8]


def is_written(message: str, known: list[str]) -> bool:
    """Each part between two … stands in a text of the product."""
    parts = [part.strip(" :;,().") for part in message.split("…")]
    parts = [part for part in parts if len(part) > 2]
    return all(any(part in OPEN.sub("…", text) for text in known) for part in parts)


class FaqTest(unittest.TestCase):
    def test_messages(self) -> None:
        known = list_messages()
        rows = re.findall(r"^\| `([^`]+)` \|", (ROOT / "docs/faq.md").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertGreater(len(rows), 20)
        for message in rows:
            with self.subTest(message):
                self.assertTrue(is_written(message, known), "nothing writes this")

    def test_a_message_that_there_is_not(self) -> None:
        self.assertFalse(is_written("devices: … has no such thing at all", list_messages()))


if __name__ == "__main__":
    unittest.main()
