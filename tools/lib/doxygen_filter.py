"""Doxygen's input filter: turns plain comments into Doxygen's.

A comment before a declaration describes it; so does one after it on the same line, which may continue below in the same
column.

usage: doxygen_filter.py HEADER
"""

import re
import sys

OWN_LINE = re.compile(r"^(\s*)(//|/\*)(?![/*!<])(.*)$")
BEHIND_CODE = re.compile(r"^(\s*[^\s/*].*?\s)(//|/\*)(?![/*!<])( .*)$")
# Headings between parts, and comments for tools.
NO_TEXT = re.compile(r"^\s*(----|NOLINT|clang-format|Copyright)")


def convert(lines: list[str]) -> list[str]:
    converted = []
    column = -1  # of a comment after code that may continue
    for line in lines:
        own, behind = OWN_LINE.match(line), BEHIND_CODE.match(line)
        if behind and line.count('"', 0, behind.start(2)) % 2 == 0 and not NO_TEXT.match(behind[3]):
            column = behind.start(2)
            mark = "///<" if behind[2] == "//" else "/**<"
            converted.append(behind[1] + mark + behind[3])
        elif own and not NO_TEXT.match(own[3]):
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
