"""Faults at marks in the source: a comment `FAULT(name)` at the end of a line, or alone above it, marks the code of that line.

A fault is said in terms of what is marked, a statement, a condition, an operand, so that layout and most names may change.
In replacements {} is what stands there."""
import re

from schemata import Edit, Mutant
from source import Source

HEAD = re.compile(r"(?:\}\s*)?(?:else\s+)?(?:if|while)(?:\s+constexpr)?\s*\(")


def statement(new, count=1):
    """The statement, or some in a row; with "" there is none instead."""
    def plan(source, place):
        begin, end = source.statement_at(place)
        for _ in range(count - 1):
            end = source.statement_at(re.compile(r"\S").search(source.code, end).start())[1]
        return [Edit(begin, end, new or ";", True)]
    return plan


def drop(count=1):
    return statement("", count)


def insert(new):
    """Before the statement."""
    return statement(new + " {}")


def condition(new):
    """What is in the parentheses of an if, or of a while."""
    def plan(source, place):
        begin = HEAD.match(source.code, place).end()
        return [Edit(begin, source.close(begin - 1) - 1, new)]
    return plan


def value(new, at=r"(?:\breturn\b|[^=!<>]=(?!=))\s*"):
    """What is returned or assigned, or with what a variable begins."""
    def plan(source, place):
        begin = re.compile(at).search(source.code, place).end()
        return [Edit(begin, source.statement_at(begin)[1] - 1, new)]
    return plan


def returned(new):
    """What the first return returns, also inside of a function or lambda on the line."""
    return value(new, r"\breturn\b\s*")


def argument(number, new):
    """The number-th argument of the first call, or of an initialiser, counted from 1."""
    def plan(source, place):
        opening = re.compile(r"[({]").search(source.code, place).start()
        begin, end = split(source, opening + 1, source.close(opening) - 1, ",")[number - 1]
        return [Edit(begin, end, new)]
    return plan


def all_of(*plans):
    """Several edits of one line."""
    return lambda source, place: [edit for plan in plans for edit in plan(source, place)]


def operand(number, new=None):
    """The number-th operand of the condition or value: of its && or || that binds least. It is left out without a replacement."""
    def plan(source, place):
        whole = condition if HEAD.match(source.code, place) else value
        edit = whole("")(source, place)[0]
        for operator in ("||", "&&"):
            operands = split(source, edit.begin, edit.end, operator)
            if len(operands) > 1:
                begin, end = operands[number - 1]
                return [Edit(begin, end, new or ("true" if operator == "&&" else "false"))]
        raise ValueError(f"{source.path}:{source.line_of(place)}: there is no && and no ||")
    return plan


def part(pattern, new):
    """The expression that matches, on the line."""
    def plan(source, place):
        match = re.compile(pattern).search(source.code, place, source.code.index("\n", place))
        return [Edit(match.start(), match.end(), new)]
    return plan


def together(*plans):
    return lambda source, place: [edit for plan in plans for edit in plan(source, place)]


def split(source, begin, end, separator):
    """Parts between separators outside of brackets, without blanks around them."""
    parts, first, at = [], begin, begin
    while at < end:
        if source.code[at] in "([{":
            at = source.close(at)
        elif source.code.startswith(separator, at):
            parts.append((first, at))
            at += len(separator)
            first = at
        else:
            at += 1
    parts.append((first, end))
    stripped = []
    for first, last in parts:
        text = source.code[first:last]
        stripped.append((first + len(text) - len(text.lstrip()), last - len(text) + len(text.rstrip())))
    return stripped


def find(path, text, faults, found, others):
    """The mutants of a source; `found` gets the marks that it has. Marks may be of `others`, the other suites, too."""
    source = Source(text, path)
    for mark, place in source.marks():
        where = f"{path}:{source.line_of(place)}"
        if mark in others:
            continue
        if mark not in faults:
            raise ValueError(f"{where}: no suite has the fault {mark}")
        if mark in found:
            raise ValueError(f"{where}: {mark} is marked twice")
        found.add(mark)
        try:
            edits = faults[mark](source, place)
        except (AttributeError, IndexError) as problem:
            raise ValueError(f"{where}: the code is not of the kind that {mark} changes") from problem
        for edit in edits:
            old = source.text[edit.begin:edit.end]
            edit.text = edit.text.replace("{}", old) if edit.is_statement else f"({edit.text.replace('{}', f'({old})')})"
        yield Mutant(path, source.line_of(place), mark, edits)
