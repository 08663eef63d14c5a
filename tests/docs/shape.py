"""The shape of a tool's output: what stays when values, paths and machines change."""

import re

# A field's name, then two blanks or more, then its value: `    link           active, Ethernet`; `VERBENA_HCA = x`.
FIELD = re.compile(r"^ *(\S.*?)(?: {2,}| = )\S")
HEADING = re.compile(r"^[A-Z][A-Z ]+$")
MAX_NAME_COLUMNS = 40


def describe_line(line: str) -> str | None:
    """A heading, a table's heading or the name of a field; None for a line that is all value."""
    if line.strip() == "..." or "/" in line[:MAX_NAME_COLUMNS].split("  ")[0]:
        return None
    if HEADING.match(line):
        return line
    if line.startswith("#"):
        return re.sub(r"\d[\d.]*", "N", " ".join(line.split()))
    field = FIELD.match(line)
    if field is None or len(field[1]) > MAX_NAME_COLUMNS or len(line) - len(line.lstrip()) > 8:
        return None  # a sentence, or the second line of a value
    return re.sub(r"\d[\d.]*", "N", field[1])


def describe(lines: list[str]) -> list[str]:
    return [shape for shape in map(describe_line, lines) if shape is not None]


def find_missing(documented: list[str], seen: list[str]) -> str | None:
    """The first line of what is documented whose shape is not in what was seen, in the same order."""
    rest = iter(describe(seen))
    for line in documented:
        shape = describe_line(line)
        if shape is not None and shape not in rest:
            return line
    return None
