"""Doxygen's input filter: turns plain comments into Doxygen's.

A comment before a declaration describes the declaration. A comment after a declaration on the same line describes the
declaration too, and may continue below in the same column. The first comment describes the file. Any other comment that is
followed by an empty line describes nothing.

usage: doxygen_filter.py HEADER
"""

import re
import sys

OWN_LINE = re.compile(r"^(\s*)(//|/\*)(?![/*!<])(.*)$")
TRAILING = re.compile(r"^(\s*[^\s/*].*?\s)(//|/\*)(?![/*!<])( .*)$")
# Headings between parts, and comments for tools.
NO_TEXT = re.compile(r"^\s*(----|NOLINT|clang-format|Copyright)")


def find_ends(lines: list[str]) -> list[int]:
    """For each line the number of the last one of the comment that it belongs to."""
    ends = list(range(len(lines)))
    for number in range(len(lines) - 1, -1, -1):
        own = OWN_LINE.match(lines[number])
        if own and own[2] == "/*":
            ends[number] = next((n for n in range(number, len(lines)) if "*/" in lines[n]), number)
        elif own and number + 1 < len(lines) and re.match(r"\s*//", lines[number + 1]):
            ends[number] = ends[number + 1]
    return ends


def convert(lines: list[str]) -> list[str]:
    converted: list[str] = []
    column = -1  # of a comment after code that may continue
    ends = find_ends(lines)
    for number, line in enumerate(lines):
        is_first, end = number == 0, ends[number]
        stands_alone = end + 1 < len(lines) and not lines[end + 1].strip() and ends[0] != end
        own, trailing = OWN_LINE.match(line), TRAILING.match(line)
        if trailing and line.count('"', 0, trailing.start(2)) % 2 == 0 and not NO_TEXT.match(trailing[3]):
            column = trailing.start(2)
            mark = "///<" if trailing[2] == "//" else "/**<"
            converted.append(trailing[1] + mark + trailing[3])
        elif own and not NO_TEXT.match(own[3]) and not (stands_alone and own.start(2) != column):
            if is_first:
                converted.append("/// @file" if own[2] == "//" else "/** @file")
                line = f"/// {own[3].strip()}" if own[2] == "//" else f" * {own[3].strip()}"
                converted.append(line)
                continue
            is_more = own.start(2) == column and own[2] == "//"
            column = column if is_more else -1
            mark = "///<" if is_more else "///" if own[2] == "//" else "/**"
            converted.append(own[1] + mark + own[3])
        else:
            column = -1
            converted.append(line)
    return converted


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as header:
        print("\n".join(convert(header.read().splitlines())))


if __name__ == "__main__":
    main()
